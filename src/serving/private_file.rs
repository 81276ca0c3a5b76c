//! Files that hold a key or a token.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Writes a file that only its owner reads, whole or not at all, whoever could read the one before. Blocks on the disk for
/// some milliseconds.
///
/// # Errors
/// What the system says; then the file is as it was.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = unfinished(path);
    // One that was left behind keeps its mode, and whoever holds it open.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    // The rename itself is only durable with its directory.
    match path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(directory) => File::open(directory)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// Beside `path`, so that the rename is one of names alone.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_owner_reads_it_whatever_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        for open in [&path, &unfinished(&path)] {
            fs::write(open, "for all, and longer").unwrap();
            fs::set_permissions(open, fs::Permissions::from_mode(0o644)).unwrap();
        }
        write_private(&path, "secret").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "secret");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
