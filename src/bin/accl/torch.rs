//! `accl install --torch`: this library in the place of the one that a Python environment's packages bring, and back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// Where packages look, from the directory of packages on.
const PLACE: &str = "nvidia/nccl/lib/libnccl.so.2";

/// What the file that was there is called meanwhile.
const KEPT: &str = "libnccl.so.2.before-accl";

/// Says from inside of the environment which file is loaded, and its version, and whether it is ours.
const PROBE: &str = "import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
version = ctypes.c_int()
assert library.ncclGetVersion(ctypes.byref(version)) == 0
print(version.value, hasattr(library, 'acclStreamCreate'))";

/// Puts the library where `python` finds that of its packages.
pub(crate) fn install(python: &Path, library: Option<&Path>) -> Result<(), String> {
    let ours = run::check(library)?;
    let place = place_of(python)?;
    let kept = place.with_file_name(KEPT);
    if kept.exists() {
        return Err(format!("{} is there already; --undo puts it back first", kept.display()));
    }
    let new = place.with_file_name("libnccl.so.2.new");
    let failed = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    fs::copy(&ours.path, &new).map_err(|error| failed(&new, error))?;
    fs::rename(&place, &kept).map_err(|error| failed(&place, error))?;
    let put = fs::rename(&new, &place).map_err(|error| failed(&place, error));
    if let Err(error) = put.and_then(|()| probe(python, &place, true)) {
        // Nothing is left half-done.
        fs::rename(&kept, &place).map_err(|error| failed(&kept, error))?;
        return Err(format!("{error}; the file that was there is back"));
    }
    println!("{} is now ACCL-P (NCCL {}), loaded and asked", place.display(), run::version(ours.version));
    println!(
        "what was there is {}; accl install --torch {} --undo puts it back",
        kept.display(),
        python.display()
    );
    println!("pip puts its own file there when it installs nvidia-nccl again");
    Ok(())
}

/// Takes that back.
pub(crate) fn undo(python: &Path) -> Result<(), String> {
    let place = place_of(python)?;
    let kept = place.with_file_name(KEPT);
    if !kept.exists() {
        return Err(format!("{} is not there: nothing was installed, or it has been undone", kept.display()));
    }
    fs::rename(&kept, &place).map_err(|error| format!("{}: {error}", kept.display()))?;
    probe(python, &place, false)?;
    println!("{} is the file that was there before, loaded and asked", place.display());
    Ok(())
}

/// The file that the packages of `python` bring.
fn place_of(python: &Path) -> Result<PathBuf, String> {
    let directory = ask(python, &["-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"])?;
    let place = Path::new(directory.trim()).join(PLACE);
    if !place.exists() {
        return Err(format!(
            "{} does not exist: this environment has no nvidia-nccl package to be replaced; use accl run, or LD_LIBRARY_PATH",
            place.display()
        ));
    }
    Ok(place)
}

/// Has `python` load the file and ask it; an error unless it is ours just if it should be.
fn probe(python: &Path, place: &Path, ours: bool) -> Result<(), String> {
    let place = place.to_string_lossy();
    let said = ask(python, &["-c", PROBE, &place])?;
    let is_ours = said.trim().ends_with("True");
    if is_ours == ours {
        Ok(())
    } else {
        Err(format!("{place} is not the expected library: {}", said.trim()))
    }
}

fn ask(python: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(python).args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", python.display()))?;
    if !output.status.success() {
        return Err(format!("{}: {}", python.display(), String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
