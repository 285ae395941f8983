//! An exchange between two processes over a connection that moves to shared memory: whether Motet works here.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use motet_sys::{process_vm, thread};

use crate::exit_error::{FAILED, Outcome};

/// Enough messages for the connection to move to shared memory.
const MESSAGES: usize = 64;
/// Long enough for every way in which the engine copies.
const BLOCK_BYTES: usize = 1 << 20;

/// `motet probe exchange`: this process and a child, `motet probe answer`, exchange messages and blocks over a connection that moves to shared memory.
pub fn exchange() -> Outcome {
    let both = || -> std::io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut peer = Command::new(std::env::current_exe()?);
        let mut peer = peer.args(["probe", "answer"]).stdin(Stdio::piped()).spawn()?;
        if let Some(mut port) = peer.stdin.take() {
            port.write_all(&listener.local_addr()?.port().to_ne_bytes())?;
        }
        let (mut stream, _) = listener.accept()?;
        let mut block = vec![7; BLOCK_BYTES];
        for length in std::iter::repeat_n(64, MESSAGES).chain([BLOCK_BYTES; 4]) {
            stream.write_all(&block[..length])?;
            stream.read_exact(&mut block[..length])?;
        }
        // Calls that an exchange makes on some machines only.
        let mut copy = [0; 8];
        let _ = process_vm::read_from(peer.id(), block.as_ptr().addr() as u64, &mut copy);
        let _ = process_vm::write_to(peer.id(), 0, &copy);
        let _ = thread::open_pidfd(peer.id());
        drop(stream);
        Ok(peer.wait()?.success() && block.iter().all(|byte| *byte == 7))
    };
    Ok(if both().unwrap_or(false) { 0 } else { FAILED })
}

/// `motet probe answer`: the child of [`exchange`], which reads the port from standard input.
pub fn answer() -> Outcome {
    let all = || -> std::io::Result<()> {
        let mut port = [0; 2];
        std::io::stdin().read_exact(&mut port)?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, u16::from_ne_bytes(port)))?;
        let mut block = vec![0; BLOCK_BYTES];
        for length in std::iter::repeat_n(64, MESSAGES).chain([BLOCK_BYTES; 4]) {
            stream.read_exact(&mut block[..length])?;
            stream.write_all(&block[..length])?;
        }
        Ok(())
    };
    Ok(if all().is_ok() { 0 } else { FAILED })
}
