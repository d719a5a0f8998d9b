//! The database of dpkg, as it is when packages are unpacked and not configured: `/var/lib/dpkg`.

/// A member of a package's archive, as tar lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Path from `/` on, without a slash at its end; the root is `/.`.
    pub path: String,
    /// Number of the user that owns it.
    pub uid: u32,
    /// Number of its group.
    pub gid: u32,
}

impl Member {
    /// Reads a line of `tar --verbose --verbose --numeric-owner --quoting-style=literal`:
    /// `-rwxr-sr-x 0/42  67680 2025-08-10 12:00 ./sbin/unix_chkpwd`.
    pub fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, behind) = rest.trim_start().split_once(' ')?;
            rest = behind;
            Some(word)
        };
        let (mode, owner) = (word()?, word()?);
        let (_size, _date, _time) = (word()?, word()?, word()?);
        let path = match mode.bytes().next()? {
            b'l' => rest.split_once(" -> ")?.0,
            b'h' => rest.split_once(" link to ")?.0,
            _ => rest,
        };
        let path = path.strip_prefix('.')?.trim_end_matches('/');
        let (uid, gid) = owner.split_once('/')?;
        Some(Self {
            path: if path.is_empty() { "/." } else { path }.to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    }
}

/// Where a path of a package is: Debian's `/bin`, `/sbin` and `/lib` are links into `/usr`.
pub fn merged(path: &str) -> String {
    let moved = ["/bin/", "/sbin/", "/lib/"]
        .iter()
        .any(|folder| path.starts_with(folder));
    if moved {
        format!("/usr{path}")
    } else {
        path.to_owned()
    }
}

/// The content of `info/PACKAGE.list`.
pub fn list(members: &[Member]) -> String {
    members
        .iter()
        .map(|member| format!("{}\n", member.path))
        .collect()
}

/// The value of a control field on one line.
fn field<'a>(control: &'a str, name: &str) -> Option<&'a str> {
    control.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The name of a package's files in `info`: with its architecture if several of it may be installed.
pub fn info_name(control: &str, name: &str, architecture: &str) -> String {
    match field(control, "Multi-Arch") {
        Some("same") => format!("{name}:{architecture}"),
        _ => name.to_owned(),
    }
}

/// The configuration files that a package's `conffiles` names: those that it has, not those that it once had.
pub fn conffiles(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim_end)
        .filter(|line| line.starts_with('/'))
}

/// The stanza of an unpacked package in `status`. Its configuration files lie beside their places as `NAME.dpkg-new`, for dpkg to put them there.
pub fn stanza(control: &str, conffiles_text: &str) -> String {
    let mut stanza = String::new();
    for (number, line) in control.trim_end().lines().enumerate() {
        if number == 1 {
            stanza += "Status: install ok unpacked\n";
        }
        stanza += line;
        stanza.push('\n');
    }
    let mut files = conffiles(conffiles_text).peekable();
    if files.peek().is_some() {
        stanza += "Conffiles:\n";
        for file in files {
            stanza += &format!(" {file} newconffile\n");
        }
    }
    stanza.push('\n');
    stanza
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_tar_gives_the_path_and_its_owner() {
        let member = |path: &str, uid, gid| {
            Some(Member {
                path: path.to_owned(),
                uid,
                gid,
            })
        };
        for (line, expected) in [
            (
                "drwxr-xr-x 0/0               0 2023-01-05 13:05 ./",
                member("/.", 0, 0),
            ),
            (
                "drwxrwsr-x 0/50              0 2023-01-05 13:05 ./var/local/",
                member("/var/local", 0, 50),
            ),
            (
                "-rw-r--r-- 0/0             120 2023-01-05 13:05 ./etc/a file -> b",
                member("/etc/a file -> b", 0, 0),
            ),
            (
                "lrwxrwxrwx 0/0               0 2023-01-05 13:05 ./bin/sh -> dash",
                member("/bin/sh", 0, 0),
            ),
            (
                "hrwxr-xr-x 0/0               0 2023-01-05 13:05 ./usr/bin/perl5 link to ./usr/bin/perl",
                member("/usr/bin/perl5", 0, 0),
            ),
            ("tar: a warning", None),
            ("-rw-r--r-- root/root 1 2023-01-05 13:05 ./etc/x", None),
        ] {
            assert_eq!(Member::parse(line), expected, "{line}");
        }
        assert_eq!(merged("/sbin/unix_chkpwd"), "/usr/sbin/unix_chkpwd");
        assert_eq!(merged("/library/x"), "/library/x");
    }

    #[test]
    fn the_status_of_an_unpacked_package_has_its_fields_and_its_new_files() {
        let control = "Package: login\nVersion: 1:4.13\nMulti-Arch: foreign\nDescription: system login\n more of it\n";
        let files = "/etc/login.defs\nremove-on-upgrade /etc/gone\n/etc/pam.d/login\n";
        assert_eq!(
            stanza(control, files),
            "Package: login\nStatus: install ok unpacked\nVersion: 1:4.13\nMulti-Arch: foreign\n\
             Description: system login\n more of it\n\
             Conffiles:\n /etc/login.defs newconffile\n /etc/pam.d/login newconffile\n\n"
        );
        assert!(!stanza(control, "").contains("Conffiles"));
        assert_eq!(info_name(control, "login", "arm64"), "login");
        let same = "Package: libc6\nMulti-Arch: same\n";
        assert_eq!(info_name(same, "libc6", "arm64"), "libc6:arm64");
    }
}
