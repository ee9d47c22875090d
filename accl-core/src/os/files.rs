//! Files with names, which only the recorder needs: in a directory that nobody else can write to.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `f_type` of tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A directory of this user, which no other user can look into or write to.
#[derive(Debug)]
pub struct PrivateDirectory(OwnedFd);

impl PrivateDirectory {
    /// Opens it, and makes it first (mode 0700) if `make`. An error (System) with path, owner and mode if it is not private.
    pub fn open(path: &Path, make: bool) -> Result<Self> {
        let shown = path.display();
        if make {
            match rustix::fs::mkdir(path, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(Error::system(format!("cannot make {shown}"), errno)),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| Error::system(format!("cannot open {shown}"), errno))?;
        let status = rustix::fs::fstat(&directory)
            .map_err(|errno| Error::system(format!("cannot look at {shown}"), errno))?;
        let (owner, mode) = (status.st_uid, status.st_mode & 0o7777);
        let user = super::process::user();
        if owner != user || mode & 0o077 != 0 {
            return Err(Error::system(
                format!("{shown} belongs to user {owner} with mode {mode:04o}"),
                format!("need a directory of user {user} with mode 0700; remove it, or name another one"),
            ));
        }
        Ok(Self(directory))
    }

    /// True if its files are in memory: storing into one that is mapped never waits for a disk.
    pub fn is_in_memory(&self) -> bool {
        let kind = rustix::fs::fstatfs(&self.0).map(|system| system.f_type as u64);
        kind.is_ok_and(|kind| MEMORY_FILE_SYSTEMS.contains(&kind))
    }

    /// Makes a file (mode 0600) that holds `content`: with all of its room, so that storing into it cannot fail later. It gets
    /// its name when it is complete; until then it has the extension `new`.
    pub fn create(&self, name: &str, content: &[u8]) -> Result<OwnedFd> {
        let new = Path::new(name).with_extension("new");
        let new = new.to_string_lossy();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let refused = |errno| Error::system(format!("cannot make the file {name}"), errno);
        let file = rustix::fs::openat(&self.0, &*new, flags, Mode::RUSR | Mode::WUSR).map_err(refused)?;
        // Unlike a renamed file, a link overwrites nothing.
        let made = fill(file.as_fd(), content).and_then(|()| {
            rustix::fs::linkat(&self.0, &*new, &self.0, name, AtFlags::empty()).map_err(refused)
        });
        self.remove(&new);
        made.map(|()| file)
    }

    /// Opens a file of the directory as [`open_for_reading`] does.
    pub fn read(&self, name: &str) -> Result<File> {
        let file = rustix::fs::openat(&self.0, name, READING, Mode::empty());
        regular(file.map_err(|errno| Error::system(format!("cannot open {name}"), errno))?)
    }

    /// Removes a file; it may be gone already.
    pub fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
    }

    /// Gives a file another name; it may be gone already.
    pub fn rename(&self, name: &str, new: &str) {
        let _ = rustix::fs::renameat(&self.0, name, &self.0, new);
    }
}

fn fill(file: BorrowedFd<'_>, content: &[u8]) -> Result<()> {
    let mut rest = content;
    while !rest.is_empty() {
        match rustix::io::write(file, rest) {
            Ok(count) if count > 0 => rest = &rest[count..],
            Err(rustix::io::Errno::INTR) => {}
            outcome => {
                let errno = outcome.err().unwrap_or(rustix::io::Errno::NOSPC);
                return Err(Error::system(format!("no room for {} bytes", content.len()), errno));
            }
        }
    }
    Ok(())
}

const READING: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a regular file for reading; never waits, whatever lies there.
pub fn open_for_reading(path: &Path) -> Result<File> {
    let file = rustix::fs::open(path, READING, Mode::empty());
    regular(file.map_err(|errno| Error::system("cannot open it", errno))?)
}

/// Replaces bytes within a regular file, which neither grows nor shrinks.
pub fn overwrite(path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = regular(file.map_err(|errno| Error::system("cannot open it for writing", errno))?)?;
    let length = file.metadata().map_or(0, |data| data.len());
    let end = offset + bytes.len() as u64;
    if length < end {
        return Err(Error::system(
            format!("cannot write up to byte {end}"),
            format!("it has {length} bytes: it is cut off; remove it"),
        ));
    }
    file.write_all_at(bytes, offset).map_err(|error| Error::system("cannot write to it", error))
}

fn regular(file: OwnedFd) -> Result<File> {
    let status = rustix::fs::fstat(file.as_fd());
    if !status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile) {
        return Err(Error::system("cannot read it", "it is no regular file"));
    }
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("accl-files-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_directory_that_others_can_look_into_is_refused_by_owner_and_mode() {
        let path = scratch("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        let error = PrivateDirectory::open(&path, true).unwrap_err();
        assert!(error.text().contains("mode 0750") && error.text().contains("0700"), "{error}");
        std::fs::remove_dir(&path).unwrap();
        let link = scratch("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(PrivateDirectory::open(&link, true).is_err(), "a symbolic link is not followed");
        std::fs::remove_file(&link).unwrap();
    }

    #[test]
    fn files_are_private_and_nothing_that_makes_a_reader_wait_is_read() {
        let path = scratch("made");
        let directory = PrivateDirectory::open(&path, true).unwrap();
        drop(directory.create("a", b"abc").unwrap());
        let modes =
            [&path, &path.join("a")].map(|path| path.metadata().unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o700, 0o600]);
        assert!(directory.create("a", b"").is_err(), "nothing is overwritten");
        assert_eq!(
            (std::fs::read(path.join("a")).unwrap(), path.join("a.new").exists()),
            (b"abc".to_vec(), false)
        );
        assert!(std::process::Command::new("mkfifo").arg(path.join("pipe")).status().unwrap().success());
        assert!(directory.read("pipe").unwrap_err().text().contains("no regular file"));
        let file = directory.read("a").unwrap();
        assert!(crate::os::mapping::is_written_by_nobody(file.as_fd()));
        let writer = std::fs::OpenOptions::new().read(true).write(true).open(path.join("a")).unwrap();
        assert!(!crate::os::mapping::is_written_by_nobody(file.as_fd()));
        drop(writer);
        overwrite(&path.join("a"), 1, b"x").unwrap();
        assert!(overwrite(&path.join("a"), 2, b"yz").unwrap_err().text().contains("cut off"));
        assert_eq!(std::fs::read(path.join("a")).unwrap(), b"axc");
        for name in ["a", "pipe", "gone"] {
            directory.remove(name);
        }
        std::fs::remove_dir(&path).unwrap();
    }
}
