//! A debugger's view of QEMU's board, through its GDB stub: registers and physical memory of a machine
//! that stands still ("GDB User Manual", appendix E, "GDB Remote Serial Protocol"; for `Qqemu.PhyMemMode`
//! QEMU's "GDB usage").

use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::emulator::timespec;

/// Most bytes of memory asked for at once: twice as many digits fit the stub's packets of 4096 bytes.
const CHUNK: usize = 1024;
/// A stub that is silent for so long is taken for dead: a guard against hanging, nothing is measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a board's debugger stub. The board stands still from [`Debugger::connect`] to
/// [`Debugger::resume`].
#[derive(Debug)]
pub struct Debugger {
    /// Byte by byte from the socket itself, each read would wake the stub, which has more to write.
    stream: BufReader<UnixStream>,
    running: bool,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Debugger {
    /// Connects to the stub at a socket and stops the board.
    ///
    /// # Errors
    ///
    /// Nobody listens, or the listener is no stub of QEMU.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut debugger = Self {
            stream: BufReader::new(stream),
            running: false,
        };
        // The stub offers the list of registers only to those who ask for features.
        debugger.ask("qSupported:xmlRegisters=i386")?;
        match debugger.ask("Qqemu.PhyMemMode:1")?.as_str() {
            "OK" => Ok(debugger),
            other => Err(broken(format!("no physical memory: `{other}`"))),
        }
    }

    /// The values of system registers, for each CPU in the order of their numbers.
    ///
    /// # Errors
    ///
    /// The stub does not know one of the names.
    pub fn registers<const N: usize>(&mut self, names: [&str; N]) -> io::Result<Vec<[u64; N]>> {
        let list = self.document("system-registers.xml")?;
        let mut numbers = [0; N];
        for (number, name) in numbers.iter_mut().zip(names) {
            *number =
                number_of(&list, name).ok_or_else(|| broken(format!("no register {name}")))?;
        }
        let mut cpus = Vec::new();
        for thread in self.threads()? {
            self.ask(&format!("Hg{thread}"))?;
            let mut values = [0; N];
            for (value, number) in values.iter_mut().zip(numbers) {
                let bytes = bytes(&self.ask(&format!("p{number:x}"))?)?;
                let word = bytes
                    .first_chunk()
                    .ok_or_else(|| broken("short register"))?;
                *value = u64::from_le_bytes(*word);
            }
            cpus.push(values);
        }
        Ok(cpus)
    }

    /// Reads physical memory.
    ///
    /// # Errors
    ///
    /// There is no memory at a part of these addresses.
    pub fn read(&mut self, pa: u64, size: usize) -> io::Result<Vec<u8>> {
        let mut all = Vec::with_capacity(size);
        while all.len() < size {
            let part = CHUNK.min(size - all.len());
            let at = pa + all.len() as u64;
            let answer = self.ask(&format!("m{at:x},{part:x}"))?;
            let read = bytes(&answer)?;
            if read.len() != part {
                return Err(broken(format!("no memory at {at:#x}: `{answer}`")));
            }
            all.extend(read);
        }
        Ok(all)
    }

    /// Lets the board run on.
    ///
    /// # Errors
    ///
    /// The emulator has gone.
    pub fn resume(&mut self) -> io::Result<()> {
        self.send("c")?;
        // Its acknowledgement, so that what comes next is the news of the end.
        while self.byte()? != b'+' {}
        self.running = true;
        Ok(())
    }

    /// Whether a board that was let run on has stopped again, by its own power-off. Does not wait.
    ///
    /// # Errors
    ///
    /// The emulator has gone.
    pub fn has_stopped(&mut self) -> io::Result<bool> {
        if self.running {
            let socket = self.stream.get_ref().as_fd();
            let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
            let nothing = self.stream.buffer().is_empty();
            if nothing && poll(&mut fds, Some(&timespec(Duration::ZERO)))? == 0 {
                return Ok(false);
            }
            self.packet()?;
            self.running = false;
        }
        Ok(true)
    }

    fn threads(&mut self) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        let mut answer = self.ask("qfThreadInfo")?;
        while let Some(list) = answer.strip_prefix('m') {
            all.extend(list.split(',').map(str::to_owned));
            answer = self.ask("qsThreadInfo")?;
        }
        Ok(all)
    }

    fn document(&mut self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        loop {
            let at = text.len();
            let part = self.ask(&format!("qXfer:features:read:{name}:{at:x},800"))?;
            match part.split_at_checked(1) {
                Some(("m", more)) => text.push_str(more),
                Some(("l", last)) => return Ok(text + last),
                _ => return Err(broken(format!("no document {name}: `{part}`"))),
            }
        }
    }

    fn ask(&mut self, question: &str) -> io::Result<String> {
        self.send(question)?;
        self.packet()
    }

    fn send(&mut self, text: &str) -> io::Result<()> {
        let packet = format!("${text}#{:02x}", sum(text.as_bytes()));
        self.stream.get_mut().write_all(packet.as_bytes())
    }

    /// The next packet of the stub; what stands between packets are its acknowledgements.
    fn packet(&mut self) -> io::Result<String> {
        while self.byte()? != b'$' {}
        let mut text = Vec::new();
        loop {
            match self.byte()? {
                b'#' => break,
                byte => text.push(byte),
            }
        }
        let digits = [self.byte()?, self.byte()?];
        if digits != *format!("{:02x}", sum(&text)).as_bytes() {
            return Err(broken("a packet's checksum is wrong"));
        }
        self.stream.get_mut().write_all(b"+")?;
        String::from_utf8(text).map_err(|error| broken(error.to_string()))
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }
}

/// Checksum of a packet: its bytes added up.
fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// Bytes written as pairs of digits.
fn bytes(digits: &str) -> io::Result<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let text = str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    let all: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    all.filter(|_| rest.is_empty())
        .ok_or_else(|| broken(format!("no bytes: `{digits}`")))
}

/// Number of a register in the stub's list, which has an element `reg` for each with its attributes.
fn number_of(list: &str, name: &str) -> Option<u32> {
    let wanted = format!("name=\"{name}\"");
    let element = list.split('<').find(|element| {
        let mut words = element.split_ascii_whitespace();
        words.next() == Some("reg") && words.any(|word| word == wanted)
    })?;
    let number = element.split("regnum=\"").nth(1)?;
    number.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A stub that answers one line of a script after the other, whatever it is asked.
    fn stub(script: &'static [&'static str]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stub");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in script {
                let mut seen = Vec::new();
                // A question ends with '#' and two digits.
                while seen.len() < 3 || seen[seen.len() - 3] != b'#' {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    seen.push(byte[0]);
                }
                let sum = sum(answer.as_bytes());
                write!(stream, "+${answer}#{sum:02x}").unwrap();
            }
            // Until who asks has gone.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        (folder, path)
    }

    #[test]
    fn registers_are_found_by_name_and_read_on_each_cpu() {
        let (_folder, path) = stub(&[
            "PacketSize=1000",
            "OK",
            "m<reg name=\"VTTBR_EL20\" regnum=\"7\"/><reg name=\"VTTBR_EL2\" bit",
            "lsize=\"64\" regnum=\"221\"/>",
            "m01,02",
            "l",
            "OK",
            "0010004000000100",
            "OK",
            "0000000000000000",
        ]);
        let mut debugger = Debugger::connect(&path).unwrap();
        let registers = debugger.registers(["VTTBR_EL2"]).unwrap();
        assert_eq!(registers, [[0x0001_0000_4000_1000], [0]]);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let (_folder, path) = stub(&["PacketSize=1000", "OK", "0102", "E14"]);
        let mut debugger = Debugger::connect(&path).unwrap();
        assert_eq!(debugger.read(0x4000_0000, 2).unwrap(), [1, 2]);
        assert!(debugger.read(0x4000_0000, 2).is_err());
    }

    #[test]
    fn the_end_of_the_board_is_noticed_and_not_waited_for() {
        let (_folder, path) = stub(&["PacketSize=1000", "OK"]);
        let mut debugger = Debugger::connect(&path).unwrap();
        assert!(debugger.has_stopped().unwrap());
        let (board, stub) = UnixStream::pair().unwrap();
        debugger.stream = BufReader::new(board);
        (&stub).write_all(b"+").unwrap();
        debugger.resume().unwrap();
        assert!(!debugger.has_stopped().unwrap());
        (&stub).write_all(b"$T03thread:01;#05").unwrap();
        assert!(debugger.has_stopped().unwrap());
    }

    #[test]
    fn an_end_that_came_with_the_acknowledgement_is_noticed() {
        let (_folder, path) = stub(&["PacketSize=1000", "OK"]);
        let mut debugger = Debugger::connect(&path).unwrap();
        let (board, stub) = UnixStream::pair().unwrap();
        debugger.stream = BufReader::new(board);
        // One read takes both, and the socket has nothing any more.
        (&stub).write_all(b"+$T03thread:01;#05").unwrap();
        debugger.resume().unwrap();
        assert!(debugger.has_stopped().unwrap());
    }

    #[test]
    fn who_offers_no_physical_memory_is_refused() {
        let (_folder, path) = stub(&["PacketSize=1000", ""]);
        let error = Debugger::connect(&path).unwrap_err();
        assert!(error.to_string().contains("no physical memory"));
    }
}
