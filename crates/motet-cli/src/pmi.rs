//! The key-value space of a parallel job, over the wire protocol of PMI-1: lines of text on the descriptor `PMI_FD`.
//!
//! What it is: enough of the protocol for one task to publish a text that all other tasks read. Slurm (`srun --mpi=pmi2`) and Hydra speak it.
//! What it is not: PMI-2 or PMIx. The format is that of MPICH's simple PMI (`src/pmi/simple` of MPICH), version 1.1.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The variable with the number of the descriptor.
pub const FD_VARIABLE: &str = "PMI_FD";
/// The longest wait for an answer. That to a barrier waits for all tasks.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest line of an answer, bytes.
const MAX_LINE_BYTES: u64 = 4096;
/// Characters of a value. Slurm and Hydra allow 1024, with the names around it in one line.
const PART: usize = 400;
/// The most parts of a text.
const MAX_PARTS: usize = 256;
/// The prefix of the keys.
const KEY: &str = "motet-join";

/// The connection of this task to its launcher.
#[derive(Debug)]
pub struct Pmi {
    stream: BufReader<UnixStream>,
    space: String,
}

impl Pmi {
    /// The connection that the launcher has left open. `None`: there is none.
    pub fn of_process() -> Option<Result<Self, String>> {
        let number: i32 = std::env::var(FD_VARIABLE).ok()?.trim().parse().ok().filter(|number| *number > 2)?;
        let inherited = motet_sys::private_fds::borrow(number);
        // A copy: the number stays open, but not in programs that this one starts.
        let copy = rustix::io::fcntl_dupfd_cloexec(inherited, 3);
        let copy = copy.and_then(|copy| {
            rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC)?;
            Ok(copy)
        });
        Some(copy.map_err(|error| error.to_string()).and_then(|copy| Self::over(copy.into())))
    }

    fn over(stream: UnixStream) -> Result<Self, String> {
        stream.set_read_timeout(Some(LIMIT)).map_err(|error| error.to_string())?;
        let mut this = Self { stream: BufReader::new(stream), space: String::new() };
        this.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let answer = this.ask("get_my_kvsname", "my_kvsname")?;
        this.space = field(&answer, "kvsname").ok_or("no name of the key-value space")?.to_owned();
        Ok(this)
    }

    /// Takes part in the exchange: one task publishes a text, the others publish nothing. Returns when all tasks have come here.
    pub fn exchange(mut self, published: Option<&str>) -> Result<String, String> {
        if let Some(text) = published {
            let parts: Vec<String> = hexadecimal(text).chunks(PART).map(|part| part.iter().collect()).collect();
            self.put(KEY, &parts.len().to_string())?;
            for (number, part) in parts.iter().enumerate() {
                self.put(&format!("{KEY}-{number}"), part)?;
            }
        }
        self.ask("barrier_in", "barrier_out")?;
        let text = match published {
            Some(text) => text.to_owned(),
            None => self.published()?,
        };
        self.ask("finalize", "finalize_ack")?;
        Ok(text)
    }

    fn published(&mut self) -> Result<String, String> {
        let count: usize = self.get(KEY)?.parse().map_err(|_| "the number of parts is no number")?;
        if count > MAX_PARTS {
            return Err(format!("{count} parts are too many"));
        }
        let mut digits = String::new();
        for number in 0..count {
            digits += &self.get(&format!("{KEY}-{number}"))?;
        }
        text_of(&digits).ok_or_else(|| "a value is damaged".to_owned())
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        let command = format!("put kvsname={} key={key} value={value}", self.space);
        self.ask(&command, "put_result").map(drop)
    }

    fn get(&mut self, key: &str) -> Result<String, String> {
        let answer = self.ask(&format!("get kvsname={} key={key}", self.space), "get_result")?;
        field(&answer, "value").map(str::to_owned).ok_or_else(|| format!("there is no value of {key}"))
    }

    /// Sends a command, and returns its answer.
    fn ask(&mut self, command: &str, answer: &str) -> Result<String, String> {
        let lost = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => format!("no answer of the launcher within {} s", LIMIT.as_secs()),
            _ => format!("the launcher: {error}"),
        };
        self.stream.get_mut().write_all(format!("cmd={command}\n").as_bytes()).map_err(lost)?;
        let mut line = String::new();
        self.stream.by_ref().take(MAX_LINE_BYTES).read_line(&mut line).map_err(lost)?;
        match (field(&line, "cmd"), field(&line, "rc")) {
            (Some(found), None | Some("0")) if found == answer => Ok(line),
            _ => Err(format!(
                "the launcher answers {:?} to {:?}",
                crate::output::sanitize(line.trim(), 80),
                first(command)
            )),
        }
    }
}

/// The command without its arguments: values hold secrets.
fn first(command: &str) -> &str {
    command.split(' ').next().unwrap_or_default()
}

/// A field of a line `cmd=NAME key=value ...`.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn hexadecimal(text: &str) -> Vec<char> {
    text.bytes()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn text_of(digits: &str) -> Option<String> {
    let digits: Vec<u8> =
        digits.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    String::from_utf8(bytes).ok().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::{Arc, Barrier, Mutex};

    /// A launcher of one task that keeps what tasks put.
    fn launcher(values: &Arc<Mutex<HashMap<String, String>>>, all: &Arc<Barrier>) -> UnixStream {
        let (near, far) = UnixStream::pair().unwrap();
        let (values, all) = (values.clone(), all.clone());
        std::thread::spawn(move || {
            let mut out = far.try_clone().unwrap();
            for line in BufReader::new(far).lines().map_while(Result::ok) {
                let word = |name| field(&line, name).unwrap_or_default().to_owned();
                let answer = match &word("cmd")[..] {
                    "init" => "response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                    "get_my_kvsname" => "my_kvsname kvsname=space".to_owned(),
                    "put" => {
                        values.lock().unwrap().insert(word("key"), word("value"));
                        "put_result rc=0".to_owned()
                    }
                    "barrier_in" => {
                        all.wait();
                        "barrier_out rc=0".to_owned()
                    }
                    "get" => match values.lock().unwrap().get(&word("key")) {
                        Some(value) => format!("get_result rc=0 value={value}"),
                        None => "get_result rc=-1".to_owned(),
                    },
                    _ => "finalize_ack rc=0".to_owned(),
                };
                out.write_all(format!("cmd={answer}\n").as_bytes()).unwrap();
            }
        });
        near
    }

    #[test]
    fn text_reaches_all_tasks() {
        let (values, all) = (Arc::default(), Arc::new(Barrier::new(3)));
        let text = "{\"a\": \"ä=b c\n\"}".repeat(200);
        let tasks: Vec<_> = (0..3)
            .map(|rank| {
                let (stream, text) = (launcher(&values, &all), text.clone());
                let run = move || Pmi::over(stream).unwrap().exchange((rank == 0).then_some(&text[..])).unwrap();
                std::thread::spawn(run)
            })
            .collect();
        for task in tasks {
            assert_eq!(task.join().unwrap(), text);
        }
        assert!(values.lock().unwrap().values().all(|value| value.len() <= PART));
    }

    #[test]
    fn nothing_published_is_an_error() {
        let stream = launcher(&Arc::default(), &Arc::new(Barrier::new(1)));
        assert!(Pmi::over(stream).unwrap().exchange(None).is_err());
    }

    #[test]
    fn hostile_answers_are_errors() {
        for answers in ["nonsense\n", "cmd=response_to_init rc=-1\n", "cmd=response_to_init rc=0\ncmd=my_kvsname\n", ""]
        {
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(answers.as_bytes()).unwrap();
            far.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(Pmi::over(near).is_err(), "{answers}");
        }
        assert_eq!(text_of("7a"), Some("z".to_owned()));
        assert!(["7", "7g", "ff"].iter().all(|digits| text_of(digits).is_none()));
    }
}
