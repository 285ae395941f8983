//! How startpoints go from one process to another. A startpoint is a secret: who has it may connect. Arguments of a command can be read by every user of the
//! host, so startpoints are in files of mode 600, or come by standard input.

use crate::say;
use anyhow::{Context, Result, bail, ensure};
use motet_rsr::Startpoint;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The longest text that is read, bytes.
const MAX_BYTES: u64 = 64 << 10;

/// The startpoints that words name: files, or `-` for lines of standard input up to an empty one.
pub fn read(words: &[&str]) -> Result<Vec<Startpoint>> {
    let mut found = Vec::new();
    for word in words {
        if *word == "-" {
            let lines = std::io::stdin().lines().map_while(Result::ok);
            let texts = lines.take_while(|line| !line.is_empty());
            texts.map(|text| parse(&text)).try_for_each(|one| one.map(|one| found.push(one)))?;
        } else {
            found.push(parse(&private(Path::new(word)).with_context(|| (*word).to_owned())?)?);
        }
    }
    ensure!(!found.is_empty(), "no startpoint is given");
    Ok(found)
}

/// Gives this process's own startpoint to the others: in a new file, or as a line of standard output.
pub fn publish(own: &Startpoint, file: Option<&str>) -> Result<()> {
    let text = own.to_text();
    let Some(name) = file else {
        say(&text);
        return Ok(());
    };
    let new = format!("{name}.{}.new", std::process::id());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).context(new.clone())?;
    let written = writeln!(file, "{text}").and_then(|()| std::fs::rename(&new, name));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written.with_context(|| name.to_owned())
}

fn parse(text: &str) -> Result<Startpoint> {
    Ok(text.trim().parse()?)
}

/// The text of a file that belongs to this user and that no other user may read.
fn private(path: &Path) -> Result<String> {
    if !path.exists() && path.as_os_str().len() > 200 {
        bail!("no such file; a startpoint is a secret, and no argument: name the file that it is in");
    }
    let file = File::open(path)?;
    let (about, user) = (file.metadata()?, std::fs::metadata("/proc/self")?.uid());
    ensure!(about.uid() == user && about.mode() & 0o077 == 0, "others may read or write it: chmod 600");
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
