//! Disks: what they hold when the board starts, and how much memory they take.
//!
//! An image lies in what is booted, as all that VMs start with, and EL2 copies it into the RAM of the service VM whenever that
//! starts: there it is read. What a VM writes goes to memory of its own for each disk, which outlives the service VM. Of a disk
//! with an image that is an overlay, whatever the description calls it: blocks that were never written are the image's.

use bulkhead_abi::plan::PAGE;
use bulkhead_model::board::{Board, PlanError};
use bulkhead_model::describe::{Code, DiskAccess, DiskSpec, Finding, Placed, Size, System};
use bulkhead_service::disk::SECTOR;
use bulkhead_service::store::overlay_bytes;

use crate::file::{Content, File};
use crate::store::Store;

/// Most bytes of all images together: the RAM of the service VM ends below its disks.
const MOST_IMAGES: u64 = 2 << 30;

/// The disks of a system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disks {
    /// Those of all VMs, in the order of the VMs.
    pub all: Vec<Disk>,
    /// What they hold when the board starts, each content once.
    pub images: Vec<Image>,
}

/// A disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// Bytes that its VM sees.
    pub bytes: u64,
    /// Its image, by its number.
    pub image: Option<usize>,
    /// Bytes of memory for what is written; none: nothing is.
    pub memory: Option<u64>,
    /// Number of the disk that it is one with, if that stands before it.
    pub same_as: Option<usize>,
}

/// The image of disks.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Name in the description.
    pub name: String,
    /// Content.
    pub content: Content,
    /// Whether it has not been built or fetched yet, so that something else stands for it.
    pub absent: bool,
}

impl Disks {
    /// Bytes that the images take in RAM.
    pub fn ram_bytes(&self) -> u64 {
        self.images.iter().map(Image::ram_bytes).sum()
    }
}

impl Image {
    /// Bytes that it takes in RAM.
    pub fn ram_bytes(&self) -> u64 {
        (self.content.len() as u64).next_multiple_of(PAGE)
    }
}

/// Reads the images of all disks and says how much memory each disk takes. Of one that cannot be, something else is planned.
pub(crate) fn disks(
    system: &System,
    board: &Board,
    store: &mut Store,
    findings: &mut Vec<Finding>,
) -> Result<Disks, PlanError> {
    let mut disks = Disks::default();
    let of_board = board.memory.iter().map(|memory| memory.size).sum();
    let specs: Vec<&DiskSpec> = system.vms.iter().flat_map(|vm| &vm.disks).collect();
    for (number, spec) in specs.iter().enumerate() {
        let mut before = specs.iter().take(number);
        if let Some(first) = before.position(|other| other.is_one_with(spec)) {
            let mut disk = disks.all[first].clone();
            disk.same_as = Some(first);
            disks.all.push(disk);
            continue;
        }
        // Who only reads may share it with who writes.
        let mut sharers = specs.iter().filter(|other| other.is_one_with(spec));
        let writer = sharers.find(|other| other.access != DiskAccess::ReadOnly);
        let spec = writer.unwrap_or(spec);
        let disk = match &spec.image {
            None => {
                let bytes = spec.size.as_ref().map_or(PAGE, |size| size.value);
                Disk {
                    bytes,
                    image: None,
                    memory: Some(bytes),
                    same_as: None,
                }
            }
            Some(image) => {
                let file = match store.file(image, findings) {
                    Ok(file) => file,
                    Err(PlanError::Description) => Some(File::new(vec![0; 8])),
                    Err(other) => return Err(other),
                };
                with_image(spec, image, file, (of_board, &mut disks.images), findings)
            }
        };
        disks.all.push(disk);
    }
    Ok(disks)
}

/// A disk with an image, which is `None` if it is not there yet.
fn with_image(
    spec: &DiskSpec,
    image: &Placed<String>,
    file: Option<File>,
    (of_board, images): (u64, &mut Vec<Image>),
    findings: &mut Vec<Finding>,
) -> Disk {
    let absent = file.is_none();
    let mut file = file.unwrap_or_else(|| File::new(vec![0; 8]));
    let content = file.bytes().len() as u64;
    if content == 0 {
        findings.push(
            Finding::new(
                Code::DiskImage,
                format!("`{}` cannot be the image of a disk", image.value),
            )
            .at(image.span.clone(), "is empty")
            .help("leave `image` out and say a size, and the disk holds zeros"),
        );
        // Payloads have bytes.
        file = File::new(vec![0; 8]);
    }
    let enough = content.max(1).next_multiple_of(SECTOR);
    let mut bytes = spec.size.as_ref().map_or(enough, |size| size.value);
    if let Some(size) = spec.size.as_ref().filter(|size| size.value < content) {
        let kib = Size(content.next_multiple_of(1 << 10));
        findings.push(
            Finding::new(
                Code::DiskSmall,
                format!("disk `{}` is smaller than its image", spec.name.value),
            )
            .at(size.span.clone(), format!("{} here", Size(size.value)))
            .at(image.span.clone(), format!("has {}", Size(content)))
            .help(format!(
                "leave `size` out, or say {kib} at least; what is behind the image holds zeros"
            )),
        );
    }
    let overlay = |bytes| match spec.access {
        DiskAccess::ReadOnly => Some(None),
        DiskAccess::Write | DiskAccess::CopyOnWrite => overlay_bytes(bytes).map(Some),
    };
    let others: u64 = images.iter().map(Image::ram_bytes).sum();
    let fits = |memory: Option<u64>| {
        let twice = 2 * content.next_multiple_of(PAGE);
        memory.unwrap_or(0).saturating_add(twice) <= of_board && others + content <= MOST_IMAGES
    };
    let mut memory = overlay(bytes).filter(|memory| fits(*memory));
    if memory.is_none() {
        let parts = match overlay(bytes) {
            Some(None) => format!("its image twice, {} each", Size(content)),
            Some(Some(overlay)) => format!(
                "its image twice, {} each, and {} for what is written",
                Size(content),
                Size(overlay)
            ),
            None => "more than there is of any memory".to_owned(),
        };
        let place = spec.size.as_ref().filter(|size| size.value > content);
        findings.push(
            Finding::new(
                Code::DiskLarge,
                format!("disk `{}` is too large for the board", spec.name.value),
            )
            .at(
                place.map_or_else(|| image.span.clone(), |size| size.span.clone()),
                format!("takes {parts}"),
            )
            .help(format!(
                "the board has {} in all, and images may have {} together: make it smaller, or give the board more `memory`",
                Size(of_board),
                Size(MOST_IMAGES)
            )),
        );
        // What else is wrong is found all the same.
        file = File::new(vec![0; 8]);
        bytes = SECTOR;
        memory = overlay(bytes);
    }
    Disk {
        bytes,
        image: Some(number(image, &file, absent, images)),
        memory: memory.flatten(),
        same_as: None,
    }
}

/// The number of an image among all.
fn number(name: &Placed<String>, file: &File, absent: bool, images: &mut Vec<Image>) -> usize {
    let content = file.content();
    let known = images.iter().position(|image| image.content == content);
    known.unwrap_or_else(|| {
        images.push(Image {
            name: name.value.clone(),
            content,
            absent,
        });
        images.len() - 1
    })
}
