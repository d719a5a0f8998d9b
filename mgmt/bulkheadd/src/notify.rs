//! What a service tells systemd about itself (sd_notify(3)): a datagram to the socket in $NOTIFY_SOCKET.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says `text` to systemd, if it has started this process and listens.
///
/// # Errors
/// There is a socket, and it does not take it.
pub fn notify(socket: Option<&OsStr>, text: &str) -> io::Result<()> {
    let Some(socket) = socket.filter(|socket| !socket.is_empty()) else {
        return Ok(());
    };
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.send_to_addr(text.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_spoken_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let name = format!("bulkheadd-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listeners = [
            (
                UnixDatagram::bind(&path).expect("a socket"),
                path.into_os_string(),
            ),
            (
                UnixDatagram::bind_addr(&address).expect("a socket"),
                format!("@{name}").into(),
            ),
        ];
        for (listener, socket) in listeners {
            notify(Some(&socket), "READY=1").expect("it listens");
            let mut bytes = [0; 16];
            let length = listener.recv(&mut bytes).expect("a datagram");
            assert_eq!(&bytes[..length], b"READY=1");
        }
        notify(None, "READY=1").expect("nobody has to listen");
    }
}
