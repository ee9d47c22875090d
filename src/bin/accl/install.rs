//! Lays out the libraries and headers as `ci/install` does.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// The headers travel inside the program: it can install from a directory that has only libraries.
const HEADERS: [(&str, &str); 3] = [
    ("nccl.h", include_str!("../../../include/nccl.h")),
    ("pccl.h", include_str!("../../../include/pccl.h")),
    ("accl.h", include_str!("../../../include/accl.h")),
];

/// Installs from `from`, or the directory of this program.
pub(crate) fn install(prefix: &Path, from: Option<PathBuf>) -> Result<(), String> {
    let from = match from {
        Some(from) => from,
        None => {
            let program =
                std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
            program.parent().map(Path::to_path_buf).unwrap_or_default()
        }
    };
    // All is read before anything is made: a failure leaves no half of an installation.
    let [accl, nccl, pccl] = ["libaccl.so", "libnccl.so", "libpccl.so"].map(|name| read(&from.join(name)));
    let (accl, faces) = (accl?, [("nccl", nccl?), ("pccl", pccl?)]);
    let (libraries, headers) = (prefix.join("lib"), prefix.join("include"));
    for directory in [&libraries, &headers] {
        fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    put(&libraries.join("libaccl.so"), &accl, 0o755)?;
    for (face, content) in faces {
        let soname = format!("lib{face}.so.2");
        put(&libraries.join(&soname), &content, 0o755)?;
        link(&soname, &libraries.join(format!("lib{face}.so")))?;
    }
    for (name, content) in HEADERS {
        put(&headers.join(name), content.as_bytes(), 0o644)?;
    }
    println!("installed in {}", prefix.display());
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path)
        .map_err(|error| format!("{}: {error}; --from names the directory of the libraries", path.display()))
}

/// A name beside `path` for what is not complete yet.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Replaces by renaming, never writes over: programs that run keep the file they have mapped.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    let new = beside(path);
    fs::write(&new, content)
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn link(target: &str, path: &Path) -> Result<(), String> {
    let new = beside(path);
    let _ = fs::remove_file(&new);
    symlink(target, &new)
        .and_then(|()| fs::rename(&new, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}
