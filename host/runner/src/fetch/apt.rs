//! Packages for arm64 through apt with a state of its own: the system's sources, lists and status
//! are neither read for packages nor written. apt verifies the signatures of what it downloads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_model::failure::Failure;

use super::archive::{Archive, Suite, missing};
use super::deb::Package;
use crate::command::run;
use crate::progress::Step;
use crate::temp_files;

/// The release that payloads come from, whatever the host runs.
const SUITE: &str = "bookworm";
/// Names a mirror where the system's own sources have none of [`SUITE`], as on Ubuntu.
const MIRROR: &str = "BULKHEAD_MIRROR";
/// Debian's keys, as its package `debian-archive-keyring` installs them, on Ubuntu too.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Names of packages that are said one by one.
const MANY: usize = 12;
/// Advice to the user when apt fails.
const ADVICE: &str = "see that the network reaches a Debian mirror (apt's proxy settings are used), \
                      or give a folder of .deb files with `bulkhead fetch --from DIR`";

/// apt with a private state for arm64 under one folder.
#[derive(Debug)]
pub struct Apt {
    /// The private state.
    folder: PathBuf,
    /// The package lists have been brought up to date by this process.
    updated: bool,
}

impl Apt {
    /// Sets up the state in `folder`; asks nothing of the network yet.
    pub fn new(folder: &Path) -> Result<Self, Failure> {
        let keys = if Path::new(KEYRING).exists() {
            format!("Signed-By: {KEYRING}\n")
        } else {
            String::new()
        };
        let source = format!(
            "Types: deb\nURIs: {}\nSuites: {SUITE} {SUITE}-updates {SUITE}-backports\nComponents: main\nArchitectures: arm64\n{keys}",
            mirror()?
        );
        Self::with(folder, &source)
    }

    /// The same with these sources.
    fn with(folder: &Path, sources: &str) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| {
            let what = format!("cannot set up apt's state in {}", folder.display());
            Failure::environment(
                what,
                e,
                "set BULKHEAD_CACHE to a folder that you may write to",
            )
        };
        for name in [
            "lists/partial",
            "cache/archives/partial",
            "archives",
            "sources",
        ] {
            fs::create_dir_all(folder.join(name)).map_err(failed)?;
        }
        fs::write(folder.join("status"), "").map_err(failed)?;
        fs::write(folder.join("sources/debian.sources"), sources).map_err(failed)?;
        Ok(Self {
            folder: folder.to_owned(),
            updated: false,
        })
    }

    /// The release that this computer runs, for arm64: what stands beside its own packages there.
    pub fn of_host(folder: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let sources = host_sources(&text, &mirror_of).ok_or_else(|| {
            Failure::environment(
                "the release of this system is not known for arm64",
                "it is neither Debian nor Ubuntu, or apt's sources name no mirror of it",
                "",
            )
        })?;
        Self::with(folder, &sources)
    }

    /// The file of a package in this very version, got if it is not there.
    pub fn exact(&mut self, package: &Package) -> Result<PathBuf, Failure> {
        let file = self
            .folder
            .join("archives")
            .join(format!("{}.deb", package.stem()));
        if !file.is_file() {
            self.update()?;
            self.get(std::slice::from_ref(package))?;
        }
        Ok(file)
    }

    /// One of apt's tools, told to use the private state only.
    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        let mut set = |key: &str, value: &Path| {
            let mut option = std::ffi::OsString::from(format!("{key}="));
            option.push(value);
            command.arg("-o").arg(option);
        };
        let at = |name: &str| self.folder.join(name);
        for key in ["APT::Architecture", "APT::Architectures"] {
            set(key, Path::new("arm64"));
        }
        set("Dir::State", &self.folder);
        set("Dir::State::lists", &at("lists"));
        set("Dir::State::status", &at("status"));
        set("Dir::Cache", &at("cache"));
        set("Dir::Etc::SourceParts", &at("sources"));
        for key in ["SourceList", "Preferences", "PreferencesParts"] {
            set(&format!("Dir::Etc::{key}"), Path::new("/dev/null"));
        }
        // The cache may lie in a home folder that apt's own user cannot enter; apt would warn and go on as root.
        set("APT::Sandbox::User", Path::new("root"));
        set("Acquire::Languages", Path::new("none"));
        set(
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled",
            Path::new("false"),
        );
        set("Acquire::Retries", Path::new("3"));
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    /// Gets the upstream source of a package of `suite` into `folder`, as Debian keeps it.
    pub fn source(folder: &Path, name: &str, suite: &str) -> Result<PathBuf, Failure> {
        let apt = Self::new(&folder.join("apt"))?;
        let keys = if Path::new(KEYRING).exists() {
            format!("Signed-By: {KEYRING}\n")
        } else {
            String::new()
        };
        let source = format!(
            "Types: deb-src\nURIs: {}\nSuites: {suite}\nComponents: main\n{keys}",
            mirror()?
        );
        fs::write(apt.folder.join("sources/debian.sources"), source).map_err(|e| {
            let what = format!("cannot set up apt's state in {}", apt.folder.display());
            Failure::environment(what, e, ADVICE)
        })?;
        let mut update = apt.tool("apt-get");
        update.args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]);
        run(
            &mut update,
            || "apt cannot read Debian's lists of sources",
            ADVICE,
        )?;
        let mut get = apt.tool("apt-get");
        get.args(["-qq", "source", "--download-only", name]);
        let what = || format!("apt cannot get the source of {name}");
        run(get.current_dir(folder), what, ADVICE)?;
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files = files.map(|entry| entry.path());
        let upstream = files.find(|path| path.to_string_lossy().contains(".orig.tar."));
        upstream.ok_or_else(|| Failure::environment(what(), "there is no upstream archive", ADVICE))
    }

    /// Brings the package lists up to date, once for each process.
    fn update(&mut self) -> Result<(), Failure> {
        if self.updated {
            return Ok(());
        }
        let step = Step::start("reading Debian's package lists for arm64");
        let mut command = self.tool("apt-get");
        command.args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]);
        run(
            &mut command,
            || "apt cannot read Debian's package lists",
            ADVICE,
        )?;
        drop(step);
        self.updated = true;
        Ok(())
    }
}

impl Archive for Apt {
    fn find(&mut self, name: &str, suite: Suite) -> Result<Option<Package>, Failure> {
        self.update()?;
        let mut command = self.tool("apt-cache");
        // Debian marks backports as not automatic: without this they are never chosen.
        if suite == Suite::Backports {
            command.args(["-t", &format!("{SUITE}-backports")]);
        }
        command.args(["--no-all-versions", "show", name]);
        // An unknown or purely virtual package is not an error here: the caller decides whether it is needed.
        let output = command
            .output()
            .map_err(|e| Failure::environment("cannot run apt-cache", e, "install apt"))?;
        Ok(Package::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    fn closure(&mut self, names: &[&str]) -> Result<Vec<Package>, Failure> {
        self.update()?;
        let failed = || "apt cannot find out which packages belong together";
        let mut simulate = self.tool("apt-get");
        simulate.args(["-q", "--no-install-recommends", "--simulate", "install"]);
        let installs = installs(&run(simulate.args(names), failed, ADVICE)?);
        let mut show = self.tool("apt-cache");
        show.arg("show").args(&installs);
        let stanzas = run(&mut show, failed, ADVICE)?;
        let known: BTreeMap<String, Package> = stanzas
            .split("\n\n")
            .filter_map(Package::parse)
            .map(|package| (format!("{}={}", package.name, package.version), package))
            .collect();
        let package = |install: String| {
            known
                .get(&install)
                .cloned()
                .ok_or_else(|| missing(&install))
        };
        installs.into_iter().map(package).collect()
    }

    fn get(&mut self, packages: &[Package]) -> Result<Vec<PathBuf>, Failure> {
        let archives = self.folder.join("archives");
        let file = |package: &Package| archives.join(format!("{}.deb", package.stem()));
        let missing: Vec<_> = packages.iter().filter(|p| !file(p).is_file()).collect();
        if !missing.is_empty() {
            let names: Vec<_> = missing.iter().map(|p| p.name.as_str()).collect();
            let step = match names.len() {
                0..=MANY => Step::start(format!("downloading {}", names.join(" "))),
                many => Step::start(format!("downloading {many} packages")),
            };
            // apt verifies each file before it appears; a folder of its own keeps an interrupted run out of the archive.
            let partial = temp_files::folder_in(&self.folder).map_err(|e| {
                Failure::environment("cannot make a folder for downloads", e, ADVICE)
            })?;
            let mut command = self.tool("apt-get");
            command.args(["-qq", "-o", "APT::Status-Fd=1", "download"]);
            command.args(missing.iter().map(|p| format!("{}={}", p.name, p.version)));
            download(command.current_dir(partial.value.path()), &step)?;
            for package in missing {
                let name = format!("{}.deb", package.stem());
                fs::rename(partial.value.path().join(&name), archives.join(&name)).map_err(
                    |e| Failure::environment(format!("apt did not deliver {name}"), e, ADVICE),
                )?;
            }
        }
        Ok(packages.iter().map(file).collect())
    }
}

/// `NAME=VERSION` of what apt would install, in its order of unpacking, from lines such as
/// `Inst libc6 (2.36-9 Debian:12.1/stable [arm64])`.
fn installs(simulated: &str) -> Vec<String> {
    let lines = simulated.lines();
    lines
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
            let (_, rest) = rest.split_once('(')?;
            let version = rest.split([' ', ')']).next()?;
            // A package of an architecture that is not the first one has it behind its name.
            let name = name.split(':').next()?;
            Some(format!("{name}={version}"))
        })
        .collect()
}

/// Runs a download, showing the percentages that apt writes on its status channel.
fn download(command: &mut Command, step: &Step) -> Result<(), Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::environment("apt cannot download Debian's packages", why, ADVICE)
    };
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    let errors = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = pipe.read_to_string(&mut text);
            read.map_or_else(|e| e.to_string(), |_| text)
        })
    });
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // dlstatus:NUMBER:PERCENT:TEXT
            let mut fields = line.split(':');
            if fields.next() == Some("dlstatus")
                && let Some(percent) = fields.nth(1).and_then(|text| text.parse::<f64>().ok())
            {
                step.percent(percent as u64);
            }
        }
    }
    let status = child.wait().map_err(|e| failed(&e))?;
    let errors = errors
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default();
    if status.success() {
        Ok(())
    } else {
        Err(failed(&errors))
    }
}

/// Sources of the release that an os-release describes, for arm64.
fn host_sources(os_release: &str, mirror_of: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let field = |name: &str| {
        let mut lines = os_release.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    let codename = field("VERSION_CODENAME").filter(|name| !name.is_empty())?;
    let stanza = |uri: &str, suites: &str, components: &str| {
        format!(
            "Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: {components}\nArchitectures: arm64\n"
        )
    };
    if field("ID")? == "ubuntu" {
        // Its mirrors for arm64 are others than those that a computer of another architecture uses.
        let suites = format!("{codename} {codename}-updates {codename}-security");
        return Some(stanza(
            "http://ports.ubuntu.com/ubuntu-ports",
            &suites,
            "main universe",
        ));
    }
    let release = mirror_of(&codename).or_else(|| std::env::var(MIRROR).ok())?;
    let release = release.trim_end_matches('/');
    let security = mirror_of(&format!("{codename}-security")).or_else(|| {
        // Debian's mirrors keep security updates beside the archive.
        let (folder, _) = release.rsplit_once('/')?;
        Some(format!("{folder}/debian-security"))
    })?;
    let keys = if Path::new(KEYRING).exists() {
        format!("Signed-By: {KEYRING}\n")
    } else {
        String::new()
    };
    let suites = format!("{codename} {codename}-updates {codename}-backports");
    Some(
        [
            stanza(release, &suites, "main"),
            stanza(&security, &format!("{codename}-security"), "main"),
        ]
        .map(|stanza| stanza + &keys)
        .join("\n"),
    )
}

/// The mirror that the system's own sources use for [`SUITE`], else the one that the user names.
fn mirror() -> Result<String, Failure> {
    mirror_of(SUITE)
        .or_else(|| std::env::var(MIRROR).ok())
        .ok_or_else(|| {
            Failure::environment(
                format!("apt's sources name no mirror of Debian {SUITE}"),
                "the guests' kernel and programs come from there",
                format!("set {MIRROR} to the address of one"),
            )
        })
}

/// The mirror that the system's own sources use for a suite of Debian.
pub fn mirror_of(suite: &str) -> Option<String> {
    // What `update` would get: told without a network, and also where there are no package lists yet.
    let listed = Command::new("apt-get")
        .args(["--print-uris", "update"])
        .stdin(Stdio::null())
        .output();
    choose_mirror(&String::from_utf8_lossy(&listed.ok()?.stdout), suite)
}

/// The mirror of a suite among lines of `'URI' FILE SIZE`.
fn choose_mirror(lines: &str, suite: &str) -> Option<String> {
    let release = format!("/dists/{suite}/InRelease'");
    lines.lines().find_map(|line| {
        let (uri, _) = line.strip_prefix('\'')?.split_once(&release)?;
        Some(uri.trim_end_matches('/').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_of_the_suite_wins_over_those_of_others() {
        let lines = "'http://a/debian/dists/bookworm-updates/InRelease' a 0\n\
                     'http://b/debian/dists/bookworm/InRelease' b 0 \n\
                     'http://b/debian/dists/bookworm/main/binary-arm64/Packages.xz' c 0\n";
        assert_eq!(
            choose_mirror(lines, SUITE).as_deref(),
            Some("http://b/debian")
        );
        assert_eq!(
            choose_mirror("'http://a/ubuntu/dists/noble/InRelease' a 0\n", SUITE),
            None
        );
    }

    #[test]
    fn the_release_of_this_computer_is_had_with_its_security_updates() {
        let mirror = |suite: &str| (suite == "trixie").then(|| "http://m/debian/".to_owned());
        let debian = "NAME=\"Debian\"\nVERSION_CODENAME=trixie\nID=debian\n";
        let sources = host_sources(debian, &mirror).expect("known");
        let line = |text: &str| sources.lines().any(|line| line == text);
        assert!(
            line("URIs: http://m/debian") && line("URIs: http://m/debian-security"),
            "{sources}"
        );
        assert!(
            line("Suites: trixie-security") && sources.matches("\n\n").count() == 1,
            "{sources}"
        );
        let ubuntu = "ID=ubuntu\nVERSION_CODENAME=noble\n";
        let sources = host_sources(ubuntu, &mirror).expect("known");
        assert!(
            sources.contains("/ubuntu-ports\nSuites: noble "),
            "{sources}"
        );
        assert_eq!(host_sources("ID=fedora\n", &mirror), None);
    }

    #[test]
    fn the_order_of_unpacking_is_read_with_its_versions() {
        let said = "Reading package lists...\n\
                    The following NEW packages will be installed:\n  dmsetup libc6\n\
                    Inst libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [arm64]) []\n\
                    Inst dmsetup (2:1.02.185-2 Debian:12.15/oldstable [arm64])\n\
                    Inst tzdata [2024a] (2026b-0+deb12u1 Debian:12.15/oldstable, Debian:x [all])\n\
                    Conf libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [arm64])\n";
        assert_eq!(
            installs(said),
            [
                "libc6=2.36-9+deb12u14",
                "dmsetup=2:1.02.185-2",
                "tzdata=2026b-0+deb12u1"
            ]
        );
    }
}
