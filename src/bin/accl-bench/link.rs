//! A rank's connection with the hub.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::failure::{Exit, Failure, Outcome};
use crate::message::{ToHub, ToRank, line};

/// A socket of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// The socket twice: to read from, and to write to.
    pub(crate) fn halves(self) -> std::io::Result<(Reader, Writer)> {
        Ok(match self {
            Self::Unix(socket) => (BufReader::new(Box::new(socket.try_clone()?)), Box::new(socket)),
            Self::Tcp(socket) => {
                socket.set_nodelay(true)?;
                (BufReader::new(Box::new(socket.try_clone()?)), Box::new(socket))
            }
        })
    }
}

pub(crate) type Reader = BufReader<Box<dyn Read + Send>>;
pub(crate) type Writer = Box<dyn Write + Send>;

/// The rank's end.
#[allow(missing_debug_implementations, reason = "holds a boxed writer")]
pub(crate) struct Link {
    writer: Mutex<Writer>,
    answers: Mutex<Receiver<Vec<String>>>,
    stopped: Mutex<Receiver<i32>>,
}

impl Link {
    /// Starts to listen. With `leave` the process ends as soon as the hub says so or is gone, whatever the rank is
    /// doing; without it (in the hub's own process) the hub ends the process.
    pub(crate) fn new(socket: Socket, leave: bool) -> std::io::Result<Self> {
        let (reader, writer) = socket.halves()?;
        let (answer_to, answers) = channel();
        let (stop_to, stopped) = channel();
        std::thread::Builder::new()
            .name("bench-link".into())
            .spawn(move || listen(reader, &answer_to, &stop_to, leave))?;
        Ok(Self { writer: Mutex::new(writer), answers: Mutex::new(answers), stopped: Mutex::new(stopped) })
    }

    /// Errors are not the caller's: when the hub is gone, the listener ends this process.
    pub(crate) fn send(&self, message: &ToHub) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.write_all(&line(message));
    }

    /// Gives a text, gets everybody's.
    pub(crate) fn share(&self, text: String) -> Outcome<Vec<String>> {
        self.send(&ToHub::Share(text));
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.recv().map_err(|_| Failure::new(Exit::Died, "the connection with the other ranks is gone"))
    }

    /// Waits for the end of the run and returns its code.
    pub(crate) fn wait_for_stop(&self) -> i32 {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.recv().unwrap_or(Exit::Died as i32)
    }
}

fn listen(mut reader: Reader, answers: &Sender<Vec<String>>, stopped: &Sender<i32>, leave: bool) {
    let mut text = String::new();
    let code = loop {
        text.clear();
        if !matches!(reader.read_line(&mut text), Ok(bytes) if bytes > 0) {
            if leave {
                eprintln!("accl-bench: process {}: rank 0's side closed the connection", std::process::id());
            }
            break Exit::Died as i32;
        }
        match serde_json::from_str(&text) {
            Ok(ToRank::Shared(texts)) => {
                let _ = answers.send(texts);
            }
            Ok(ToRank::Stop { code }) => break code,
            Err(_) => break Exit::Died as i32,
        }
    };
    let _ = stopped.send(code);
    if leave {
        // SAFETY: Ends the process at once, without handlers that could wait for a library that is stuck.
        unsafe { libc::_exit(code) };
    }
}
