//! Sources of packages for `fetch`: through a proxy, from a folder, or not at all from a network. The tests need none.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use bulkhead_runner::fetch::modules::WANTED;

use super::suite::{Context, Job, Test};
use super::tool;

/// A mirror that no network has.
const MIRROR: &str = "http://debian.invalid/debian";
/// Variables by which a proxy is named, or not used.
const VARIABLES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
];
/// The kernel in the folder of packages.
const KERNEL: &str = "linux-image-6.1.0-99-arm64";

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let proxy: Job = Box::new(|_: &Context| proxied());
    let folder: Job = Box::new(|_: &Context| from_folder());
    vec![
        Test::parallel(
            "fetch/proxy",
            "`fetch` asks the proxy that the environment names, or apt's own settings, for Debian's archive.",
            proxy,
        ),
        Test::parallel(
            "fetch/folder",
            "`fetch --from` takes packages from a folder and `--offline` what the cache has, without a word to a network; a fetch that \
             fails leaves the cache as it was.",
            folder,
        ),
    ]
}

fn why(error: std::io::Error) -> Vec<String> {
    vec![error.to_string()]
}

/// A proxy that has nothing, and notes what it is asked for.
struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn open() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        // It goes with the tool.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let Some(first) = lines.next() else { continue };
                for _ in lines.by_ref().take_while(|line| !line.is_empty()) {}
                if let Ok(mut notes) = notes.lock() {
                    notes.push(first);
                }
                let nothing =
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                // Who asks may have gone.
                let _ = (&stream).write_all(nothing);
            }
        });
        Ok(Self { address, asked })
    }

    fn count(&self) -> usize {
        self.asked.lock().map_or(0, |asked| asked.len())
    }
}

/// Place in which a test fetches: a cache, and apt's settings.
struct Place {
    folder: tempfile::TempDir,
    settings: PathBuf,
}

impl Place {
    /// `more` are further settings of apt. Those of this computer are not read.
    fn new(more: &str) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("none"))?;
        fs::write(at("sources.list"), format!("deb {MIRROR} bookworm main\n"))?;
        let settings = at("apt.conf");
        let none = at("none").display().to_string();
        let list = at("sources.list").display().to_string();
        fs::write(
            &settings,
            format!(
                "Dir::Etc::Parts \"{none}\";\nDir::Etc::Main \"/dev/null\";\nDir::Etc::SourceParts \"{none}\";\n\
                 Dir::Etc::SourceList \"{list}\";\n{more}"
            ),
        )?;
        Ok(Self { folder, settings })
    }

    fn fetch(&self, words: &[&str], proxy: Option<SocketAddr>) -> std::io::Result<Output> {
        let mut command = Command::new(tool::path()?);
        for name in VARIABLES {
            command.env_remove(name);
        }
        if let Some(address) = proxy {
            command.env("http_proxy", format!("http://{address}/"));
        }
        command
            .arg("fetch")
            .args(words)
            .env("APT_CONFIG", &self.settings)
            .env("BULKHEAD_CACHE", self.folder.path().join("cache"))
            .stdin(Stdio::null())
            .output()
    }
}

fn proxied() -> Result<String, Vec<String>> {
    for by_environment in [true, false] {
        let proxy = Proxy::open().map_err(why)?;
        let address = proxy.address;
        let setting = match by_environment {
            true => String::new(),
            false => format!("Acquire::http::Proxy \"http://{address}/\";\n"),
        };
        let place = Place::new(&setting).map_err(why)?;
        let output = place.fetch(&["kernel"], by_environment.then_some(address));
        let output = output.map_err(why)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let asked = proxy.asked.lock().map(|asked| asked.clone());
        let asked = asked.unwrap_or_default();
        let wanted = format!("GET {MIRROR}/dists/bookworm/InRelease ");
        if !asked.iter().any(|line| line.starts_with(&wanted)) {
            let by = if by_environment { "http_proxy" } else { "apt" };
            return Err(vec![
                format!("the proxy that {by} names was asked for {asked:?}"),
                said,
            ]);
        }
        if output.status.code() != Some(3)
            || !said.contains("apt cannot read Debian's package lists")
        {
            return Err(vec![format!("it ended with {}", output.status), said]);
        }
    }
    Ok("two ways to name it".to_owned())
}

/// A package with these files.
pub(super) fn package(folder: &Path, files: &[(&str, u64)]) -> std::io::Result<()> {
    let root = folder.join("root");
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::create_dir_all(root.join("boot"))?;
    let control = format!(
        "Package: {KERNEL}\nVersion: 6.1.999-1\nArchitecture: arm64\nMaintainer: nobody\nDescription: nothing\n"
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    // `fetch` wants those that the initramfs has.
    let modules = root.join("lib/modules");
    fs::create_dir_all(&modules)?;
    for module in WANTED {
        fs::write(modules.join(format!("{module}.ko")), "")?;
    }
    for (name, size) in files {
        let file = fs::File::create(root.join("boot").join(name))?;
        file.set_len(*size)?;
    }
    let mut command = Command::new("dpkg-deb");
    command.args(["-Zgzip", "-z1", "--root-owner-group", "--build"]);
    let made = command.arg(&root).arg(folder).output()?;
    fs::remove_dir_all(&root)?;
    match made.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(
            String::from_utf8_lossy(&made.stderr).into_owned(),
        )),
    }
}

fn from_folder() -> Result<String, Vec<String>> {
    let proxy = Proxy::open().map_err(why)?;
    let place = Place::new("").map_err(why)?;
    let debs = place.folder.path().join("debs");
    fs::create_dir(&debs).map_err(why)?;
    package(&debs, &[("vmlinuz-6.1.0-99-arm64", 4096)]).map_err(why)?;
    let from = debs.display().to_string();
    let steps: [(&[&str], i32, usize); 6] = [
        (&["kernel", "--offline"], 3, 0),
        (&["kernel", "--from", &from], 0, 0),
        (&["kernel", "--offline"], 0, 0),
        (&["u-boot", "--from", &from], 3, 0),
        // Only this one may ask; what it does not get, the cache still has.
        (&["kernel"], 3, 1),
        (&["kernel", "--offline"], 0, 1),
    ];
    for (words, wanted, least) in steps {
        let output = place.fetch(words, Some(proxy.address)).map_err(why)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() != Some(wanted) {
            let what = format!("{words:?} ended with {}, not {wanted}", output.status);
            return Err(vec![what, said]);
        }
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        if wanted == 0 && !listed.contains(&format!("{KERNEL} 6.1.999-1")) {
            return Err(vec![format!("{words:?} says"), listed]);
        }
        let count = proxy.count();
        if (count == 0) != (least == 0) {
            return Err(vec![format!(
                "behind {words:?} the network was asked {count} times"
            )]);
        }
    }
    Ok(format!("{} steps", steps.len()))
}
