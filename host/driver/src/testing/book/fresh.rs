//! A Debian 12 in which nothing was installed before: the tutorial, word for word, is `docs/debian-12`, and all tests
//! are `docs/debian-12-test`, both on request.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bulkhead_runner::fetch::apt;

use super::reader::{Place, read};
use crate::book::PAGES;
use crate::testing::end_to_end::copy_sources;
use crate::testing::suite::{Context, Job, Test};

/// Name of Debian 12.
const RELEASE: &str = "bookworm";
/// Path of the checkout in it.
const CHECKOUT: &str = "root/bulkhead";
/// Shell script that runs a command in the folder `$1`, with its own /proc and this computer's devices; all of it goes
/// with the command.
const ENTER: &str = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && \
    folder=$1 && shift && exec chroot \"$folder\" env -i \"$@\"";
/// Variables that say how the network is reached.
const NETWORK: [&str; 8] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "BULKHEAD_MIRROR",
];
/// Variables that name the certificates to trust.
const CERTIFICATES: [&str; 3] = ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO"];
/// Path of the certificates in it.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The tests of this file.
pub fn tests() -> [Test; 2] {
    let claim = "Who follows the tutorial word for word on a bare Debian 12 sees what it shows.";
    let job: Job = Box::new(|context| fresh(context, tutorial));
    let why = "it installs a Debian, as root and from the network";
    let tutorial = Test::last("docs/debian-12", claim, job).on_request(why);
    let claim = "Who runs all tests on a bare Debian 12 sees them pass.";
    let job: Job = Box::new(|context| fresh(context, all));
    let why =
        "it installs a Debian, as root and from the network, and runs every other test once more";
    [
        tutorial,
        Test::last("docs/debian-12-test", claim, job).on_request(why),
    ]
}

/// Does the steps of the tutorial.
fn tutorial(context: &Context, place: &Place) -> Result<String, Vec<String>> {
    let page = format!("{PAGES}/tutorial/two-guests.md");
    let text =
        fs::read_to_string(context.root.join(&page)).map_err(|error| vec![error.to_string()])?;
    read(&page, &text, place)
}

/// Runs all tests that run each time.
fn all(context: &Context, place: &Place) -> Result<String, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let log = context.logs.join("debian-12-test.log");
    fs::create_dir_all(&context.logs).map_err(|e| why(&e))?;
    let file = fs::File::create(&log).map_err(|e| why(&e))?;
    let mut command = (place.shell)("./bulkhead --yes test 2>&1");
    let status = command.stdin(Stdio::null()).stdout(file).status();
    let status = status.map_err(|e| why(&e))?;
    let said = fs::read_to_string(&log).map_err(|e| why(&e))?;
    verdict(&said, status.success()).map_err(|mut wrong| {
        wrong.push(format!("all of it: {}", log.display()));
        wrong
    })
}

/// Returns the last line of a run of the tests, if that is a pass.
fn verdict(said: &str, success: bool) -> Result<String, Vec<String>> {
    let last = said.lines().last().unwrap_or_default();
    let passed = last.split_once(" passed, ");
    let passed = passed.and_then(|(passed, failed)| Some((passed.parse().ok()?, failed)));
    match passed {
        Some((1_u32.., "0 failed")) if success => Ok(last.to_owned()),
        _ => {
            let failed = said.lines().filter(|line| line.starts_with("FAIL"));
            let failed = failed.map(str::to_owned);
            Err(failed.chain([format!("it ends with `{last}`")]).collect())
        }
    }
}

fn fresh(
    context: &Context,
    steps: impl FnOnce(&Context, &Place) -> Result<String, Vec<String>>,
) -> Result<String, Vec<String>> {
    let missing = missing();
    if !missing.is_empty() {
        return Err(missing);
    }
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let out = context.root.join("out");
    fs::create_dir_all(&out).map_err(|e| why(&e))?;
    let folder = tempfile::tempdir_in(&out).map_err(|e| why(&e))?;
    let root = folder.path().to_owned();
    install(&root)?;
    let checkout = root.join(CHECKOUT);
    copy_sources(&context.root, &checkout).map_err(|e| why(&e))?;
    let variables = variables();
    let place = Place {
        folder: checkout,
        shell: Box::new(move |text| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--pid", "--fork", "--kill-child"]);
            command.args(["sh", "-c", ENTER, "sh"]).arg(&root);
            command.args(&variables).args(["sh", "-c"]);
            command.arg(format!("cd /{CHECKOUT} && {text}"));
            command
        }),
        // Compilers and packages come first.
        guard: Duration::from_secs(3600),
    };
    steps(context, &place)
}

/// Returns what this computer lacks for the test.
fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("it needs root: for a file system of its own and the mounts in it".to_owned());
    }
    for tool in ["debootstrap", "unshare", "chroot", "apt-get"] {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()) {
            missing.push(format!(
                "there is no `{tool}`: install the package that has it"
            ));
        }
    }
    if missing.is_empty() && mirror(RELEASE).is_none() {
        missing.push(format!(
            "apt's sources name no mirror of Debian {RELEASE}: set BULKHEAD_MIRROR to the address of one"
        ));
    }
    missing
}

/// Returns the address at which apt finds a suite of Debian.
fn mirror(suite: &str) -> Option<String> {
    let named = || std::env::var("BULKHEAD_MIRROR").ok();
    apt::mirror_of(suite).or_else(|| named().filter(|_| suite == RELEASE))
}

/// Installs the smallest Debian, with this computer's settings for reaching archives.
fn install(root: &Path) -> Result<(), Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let address = mirror(RELEASE).unwrap_or_default();
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", RELEASE]).arg(root);
    let output = command.arg(&address).stdin(Stdio::null()).output();
    let output = output.map_err(|e| why(&e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last: Vec<_> = said.lines().rev().take(5).map(str::to_owned).collect();
        return Err([vec!["debootstrap failed".to_owned()], last].concat());
    }
    let updates = format!("{RELEASE}-updates");
    let security = format!("{RELEASE}-security");
    let suites = [
        (RELEASE, Some(address)),
        (&updates, mirror(&updates)),
        (&security, mirror(&security)),
    ];
    let sources: String = suites
        .into_iter()
        .filter_map(|(suite, address)| Some(format!("deb {} {suite} main\n", address?)))
        .collect();
    fs::write(root.join("etc/apt/sources.list"), sources).map_err(|e| why(&e))?;
    let taken = ["/etc/resolv.conf", "/etc/hosts"]
        .map(str::to_owned)
        .into_iter();
    let settings = fs::read_dir("/etc/apt/apt.conf.d")
        .into_iter()
        .flatten()
        .flatten();
    // How archives are reached; not what this computer does after an installation.
    let settings = settings.filter(|entry| {
        fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("Acquire::"))
    });
    let settings = settings.map(|entry| entry.path().to_string_lossy().into_owned());
    let bundle = std::env::var("SSL_CERT_FILE").ok();
    for path in taken.chain(settings) {
        // One that is not there is not needed.
        let _ = fs::copy(&path, root.join(path.trim_start_matches('/')));
    }
    if let Some(bundle) = bundle {
        let place = root.join(BUNDLE.trim_start_matches('/'));
        let folder = place.parent().unwrap_or(root);
        fs::create_dir_all(folder).map_err(|e| why(&e))?;
        fs::copy(bundle, &place).map_err(|e| why(&e))?;
    }
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(
        || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        Into::into,
    );
    let config = cargo.join("config.toml");
    if config.is_file() {
        fs::create_dir_all(root.join("root/.cargo")).map_err(|e| why(&e))?;
        fs::copy(config, root.join("root/.cargo/config.toml")).map_err(|e| why(&e))?;
    }
    Ok(())
}

/// Returns the environment variables in it.
fn variables() -> Vec<String> {
    let fixed = [
        "HOME=/root",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM=xterm",
        "NO_COLOR=1",
    ];
    let network = NETWORK
        .iter()
        .filter_map(|name| Some((name, std::env::var(name).ok()?)));
    let network = network.map(|(name, value)| format!("{name}={value}"));
    let trusted = std::env::var_os("SSL_CERT_FILE")
        .map(|_| CERTIFICATES.map(|name| format!("{name}={BUNDLE}")));
    fixed
        .map(str::to_owned)
        .into_iter()
        .chain(network)
        .chain(trusted.into_iter().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_ran_and_passed_are_a_pass() {
        assert_eq!(
            verdict("ok a\n2 passed, 0 failed\n", true).unwrap(),
            "2 passed, 0 failed"
        );
        assert!(verdict("2 passed, 0 failed\n", false).is_err());
        assert!(verdict("0 passed, 0 failed\n", true).is_err());
        let wrong = verdict("FAIL b: x\n2 passed, 1 failed\n", false).unwrap_err();
        assert_eq!(wrong, ["FAIL b: x", "it ends with `2 passed, 1 failed`"]);
        assert!(verdict("", true).is_err());
    }
}
