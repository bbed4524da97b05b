//! Reads which disks are excluded, and which are provisioned automatically. Pure.
//!
//! Both are lists of blocks in the ConfigMap `mainstay-system/disks` (`filters.yaml` and
//! `autoprovision.yaml`), applied live. A block applies to the nodes its `hostname` pattern matches.
//! Exclusion wins. A missing or empty value means the agent's defaults; an invalid value leaves the
//! previous one in force.

use std::collections::BTreeMap;

use mainstay_host::{Disk, Drive, glob};
use mainstay_store::meta::Quantity;
use serde::Deserialize;

use crate::api::Provisioner;

/// The namespace of the ConfigMap.
pub const NAMESPACE: &str = "mainstay-system";
/// Its name.
pub const NAME: &str = "disks";

/// The partition type of a BIOS boot partition: a disk with one starts a machine.
const BIOS_BOOT: &str = "21686148-6449-6e6f-744e-656564454649";
/// Vendors of network and virtual disks that belong to other storage systems.
const VENDORS: [&str; 2] = ["longhorn", "SPDK bdev Controller"];

/// Why a value of the ConfigMap is invalid. Correct it.
#[derive(Debug, thiserror::Error)]
#[error("{name} is invalid: {reason}")]
pub struct Error {
    /// The key in `data`.
    pub name: &'static str,
    /// The mistake and its place.
    pub reason: String,
}

/// A block of `filters.yaml`: it excludes disks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Filter {
    /// The nodes it applies to, as a pattern; a block without it applies to none.
    pub hostname: String,
    /// Patterns of paths, as /dev/sd*.
    #[serde(alias = "devices")]
    pub exclude_devices: Vec<String>,
    /// Vendors or models, whole and in any case, or a part of the bus path.
    #[serde(alias = "vendors")]
    pub exclude_vendors: Vec<String>,
    /// Patterns of models.
    #[serde(alias = "models")]
    pub exclude_models: Vec<String>,
    /// Mount points: a disk that is mounted there, or has a partition that is.
    #[serde(alias = "paths")]
    pub exclude_paths: Vec<String>,
    /// Patterns of labels: of the disk's filesystem, or of those of all partitions.
    #[serde(alias = "labels")]
    pub exclude_labels: Vec<String>,
    /// Types of partitions: any partition of that type excludes the disk.
    #[serde(alias = "partitionTypes")]
    pub exclude_partition_types: Vec<String>,
    /// Types of drives: HDD or SSD.
    #[serde(alias = "types")]
    pub exclude_types: Vec<String>,
    /// Disks smaller than this.
    pub exclude_smaller_than: Option<Quantity>,
    /// Disks larger than this.
    pub exclude_larger_than: Option<Quantity>,
}

/// A block of `autoprovision.yaml`: it provisions blank disks. All conditions that are set must hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoProvision {
    /// The nodes it applies to, as a pattern; a block without it applies to none.
    pub hostname: String,
    /// Patterns of paths, as /dev/sd*.
    pub devices: Vec<String>,
    /// Patterns of vendors.
    pub vendors: Vec<String>,
    /// Patterns of models.
    pub models: Vec<String>,
    /// Patterns of labels.
    pub labels: Vec<String>,
    /// Types of drives: HDD or SSD.
    pub types: Vec<String>,
    /// Only disks at least this large.
    pub min_size: Option<Quantity>,
    /// Only disks at most this large.
    pub max_size: Option<Quantity>,
    /// How they are provisioned; as a filesystem if not set.
    pub provisioner: Option<Provisioner>,
    /// Tags they get.
    pub tags: Vec<String>,
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The blocks that exclude disks.
    pub filters: Vec<Filter>,
    /// The blocks that provision blank disks.
    pub auto: Vec<AutoProvision>,
    /// No disk is provisioned automatically: the cluster is being upgraded.
    pub paused: bool,
}

impl Config {
    /// Reads the data of a ConfigMap. A missing, empty or invalid value is taken from `defaults`; the
    /// errors name the invalid ones.
    #[must_use]
    pub fn read(data: &BTreeMap<String, String>, defaults: &Self) -> (Self, Vec<Error>) {
        Self::update(data, defaults, defaults)
    }

    /// Reads the data of a ConfigMap that changed. A missing or empty value is taken from `defaults`,
    /// an invalid one from `previous`; the errors name the invalid ones.
    #[must_use]
    pub fn update(
        data: &BTreeMap<String, String>,
        defaults: &Self,
        previous: &Self,
    ) -> (Self, Vec<Error>) {
        let mut errors = Vec::new();
        let filters = blocks(data, "filters.yaml", &defaults.filters);
        let auto = blocks(data, "autoprovision.yaml", &defaults.auto);
        let paused = switch(data, "upgrade-running", defaults.paused);
        let config = Self {
            filters: or_previous(filters, &previous.filters, &mut errors),
            auto: or_previous(auto, &previous.auto, &mut errors),
            paused: or_previous(paused, &previous.paused, &mut errors),
        };
        (config, errors)
    }

    /// Why a disk is excluded on a node; `None` if it is not.
    #[must_use]
    pub fn excludes(&self, node: &str, disk: &Disk, mounts: &[String]) -> Option<String> {
        if !matches!(disk.drive, Drive::Hdd | Drive::Ssd) {
            return Some(format!("its drive type, {}", disk.drive.as_str()));
        }
        let builtin = Filter {
            exclude_vendors: VENDORS.map(str::to_owned).to_vec(),
            exclude_paths: vec!["/".to_owned()],
            exclude_partition_types: vec![BIOS_BOOT.to_owned()],
            ..Filter::default()
        };
        let here = self.filters.iter().filter(|filter| applies(&filter.hostname, node));
        std::iter::once(&builtin).chain(here).find_map(|filter| filter.excludes(disk, mounts))
    }

    /// The block that provisions a disk of a node, if one does.
    #[must_use]
    pub fn takes(&self, node: &str, disk: &Disk) -> Option<&AutoProvision> {
        if self.paused {
            return None;
        }
        self.auto
            .iter()
            .filter(|block| applies(&block.hostname, node))
            .find(|block| block.takes(disk))
    }
}

/// The blocks of a value; the default if it is missing or empty.
fn blocks<T: for<'a> Deserialize<'a> + Clone>(
    data: &BTreeMap<String, String>,
    name: &'static str,
    default: &[T],
) -> Result<Vec<T>, Error> {
    match data.get(name).filter(|text| !text.trim().is_empty()) {
        None => Ok(default.to_vec()),
        Some(text) => {
            serde_saphyr::from_str(text).map_err(|error| Error { name, reason: error.to_string() })
        }
    }
}

/// A value that is `true` or `false`; the default if it is missing or empty.
fn switch(
    data: &BTreeMap<String, String>,
    name: &'static str,
    default: bool,
) -> Result<bool, Error> {
    match data.get(name).map(|text| text.trim()).unwrap_or_default() {
        "" => Ok(default),
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(Error { name, reason: format!("{other:?} is neither true nor false") }),
    }
}

fn or_previous<T: Clone>(read: Result<T, Error>, previous: &T, errors: &mut Vec<Error>) -> T {
    read.unwrap_or_else(|error| {
        errors.push(error);
        previous.clone()
    })
}

fn applies(hostname: &str, node: &str) -> bool {
    !hostname.is_empty() && glob::matches(hostname, node)
}

fn any(patterns: &[String], text: &str) -> bool {
    !text.is_empty() && patterns.iter().any(|pattern| glob::matches(pattern, text))
}

fn bytes(quantity: Quantity) -> u64 {
    u64::try_from(quantity.value()).unwrap_or(0)
}

impl Filter {
    fn excludes(&self, disk: &Disk, mounts: &[String]) -> Option<String> {
        let because = |what: &str, value: &str| Some(format!("{what} {value}"));
        if any(&self.exclude_devices, &disk.path) {
            return because("its path", &disk.path);
        }
        let vendor = self.exclude_vendors.iter().find(|name| {
            let same = |text: &str| text.trim().eq_ignore_ascii_case(name);
            same(&disk.vendor) || same(&disk.model) || disk.bus_path.contains(name.as_str())
        });
        if let Some(vendor) = vendor {
            return because("its vendor", vendor);
        }
        if any(&self.exclude_models, disk.model.trim()) {
            return because("its model", &disk.model);
        }
        if let Some(path) = self.exclude_paths.iter().find(|path| mounts.contains(path)) {
            return because("being mounted at", path);
        }
        let label = disk.contents.signatures.iter().map(|found| found.label.as_str());
        if let Some(label) = label.into_iter().find(|label| any(&self.exclude_labels, label)) {
            return because("its label", label);
        }
        let parts = &disk.partitions;
        if !parts.is_empty() && parts.iter().all(|part| any(&self.exclude_labels, &part.label)) {
            return because("the labels of all its partitions, as", &parts[0].label);
        }
        let typed = parts.iter().find(|part| {
            self.exclude_partition_types.iter().any(|kind| kind.eq_ignore_ascii_case(&part.kind))
        });
        if let Some(part) = typed {
            return because("a partition of type", &part.kind);
        }
        let drive = disk.drive.as_str();
        if self.exclude_types.iter().any(|kind| kind.eq_ignore_ascii_case(drive)) {
            return because("its drive type", drive);
        }
        let size = crate::text::size(disk.size);
        if self.exclude_smaller_than.is_some_and(|least| disk.size < bytes(least))
            || self.exclude_larger_than.is_some_and(|most| disk.size > bytes(most))
        {
            return because("its size", &size);
        }
        None
    }
}

impl AutoProvision {
    fn takes(&self, disk: &Disk) -> bool {
        let label = disk.contents.signatures.first().map_or("", |found| found.label.as_str());
        let drive = disk.drive.as_str();
        let patterns = [
            (&self.devices, disk.path.as_str()),
            (&self.vendors, disk.vendor.trim()),
            (&self.models, disk.model.trim()),
            (&self.labels, label),
        ];
        // A block without conditions provisions no disk.
        let named = patterns.iter().any(|(list, _)| !list.is_empty())
            || !self.types.is_empty()
            || self.min_size.is_some()
            || self.max_size.is_some();
        named
            && patterns.iter().all(|(list, text)| list.is_empty() || any(list, text))
            && (self.types.is_empty()
                || self.types.iter().any(|kind| kind.eq_ignore_ascii_case(drive)))
            && self.min_size.is_none_or(|least| disk.size >= bytes(least))
            && self.max_size.is_none_or(|most| disk.size <= bytes(most))
    }
}

#[cfg(test)]
mod tests;
