//! The records that go over a link's TCP connection, one way and the other.

use super::record::Record;
use crate::encryption::Socket;
use crate::error::Result;

/// How much is asked for at once.
const PIECE_BYTES: usize = 64 << 10;

/// Records that have come and are not looked at, and those that have yet to go.
#[derive(Debug, Default)]
pub(super) struct Channel {
    inbox: Vec<u8>,
    /// What of the inbox is not taken yet.
    taken: usize,
    outbox: Vec<u8>,
    /// What of the outbox has gone.
    gone: usize,
    /// Nothing more comes, or goes.
    pub(super) has_ended: bool,
}

impl Channel {
    /// Queues a record.
    pub(super) fn say(&mut self, record: &Record) {
        if !self.has_ended {
            record.encode(&mut self.outbox);
        }
    }

    /// True if everything has gone.
    pub(super) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self, socket: &Socket) {
        while self.gone < self.outbox.len() {
            match socket.write_some(&self.outbox[self.gone..], &[]) {
                Ok(Some(count)) => self.gone += count,
                Ok(None) => return,
                Err(_) => {
                    // Why is told by what can be read still.
                    self.has_ended = true;
                    break;
                }
            }
        }
        self.outbox.clear();
        self.gone = 0;
    }

    /// Takes in what is there.
    pub(super) fn fill(&mut self, socket: &Socket) {
        self.inbox.drain(..std::mem::take(&mut self.taken));
        loop {
            let end = self.inbox.len();
            self.inbox.resize(end + PIECE_BYTES, 0);
            let found = socket.read_some(&mut self.inbox[end..]);
            let count = if let Ok(Some(count)) = found { count } else { 0 };
            self.inbox.truncate(end + count);
            match found {
                Ok(Some(0)) | Err(_) => self.has_ended = true,
                Ok(Some(_)) if self.inbox.len() < 4 * PIECE_BYTES => continue,
                Ok(_) => {}
            }
            return;
        }
    }

    /// The next record, once all of it is there.
    pub(super) fn next(&mut self) -> Result<Option<Record>> {
        let Some((record, bytes)) = Record::decode(&self.inbox[self.taken..])? else { return Ok(None) };
        self.taken += bytes;
        Ok(Some(record))
    }
}
