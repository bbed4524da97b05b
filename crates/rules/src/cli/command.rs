//! The words of `mainstay rules`, each defined once: parsing and help come from here.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Replication rules: which copies of which files must exist.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Add a rule: so many copies of a data identifier on an RSE expression.
    Add(Add),
    /// List rules.
    List(List),
    /// Show one rule.
    Show {
        /// The rule, by its id.
        rule: String,
    },
    /// Watch a rule until all its copies are there.
    Watch {
        /// The rule, by its id.
        rule: String,
        /// Seconds after which to give up, with exit 1; 0 for never.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        timeout: u64,
    },
    /// Say why each copy is where it is, why it is stuck, and what would unstick it.
    Explain {
        /// The rule, by its id.
        rule: String,
        /// Only this file (`scope:name`, or a name in the rule's scope).
        file: Option<String>,
    },
    /// Repair a stuck rule now.
    Repair {
        /// The rule, by its id.
        rule: String,
    },
    /// Delete a rule at once.
    Delete {
        /// The rule, by its id.
        rule: String,
        /// Let it expire in an hour instead.
        #[arg(long)]
        soft: bool,
        /// Make replicas that lose their last lock obsolete at once.
        #[arg(long)]
        purge: bool,
    },
    /// Move a rule to another expression; the old one goes once the new one is OK.
    Move {
        /// The rule, by its id.
        rule: String,
        /// The RSE expression.
        expression: String,
    },
    /// Reduce the copies of a rule that is OK.
    Reduce {
        /// The rule, by its id.
        rule: String,
        /// How many copies are left.
        copies: i64,
        /// Take no copies from here.
        #[arg(long)]
        exclude: Option<String>,
    },
    /// Approve a rule that waits for it.
    Approve {
        /// The rule, by its id.
        rule: String,
    },
    /// Deny a rule that waits for approval.
    Deny {
        /// The rule, by its id.
        rule: String,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Change an option of a rule, as `key=value` with a JSON value.
    Update {
        /// The rule, by its id.
        rule: String,
        /// The options, `key=value`.
        options: Vec<String>,
    },
    /// Evaluate an RSE expression and show which term took what.
    Expression {
        /// The RSE expression.
        expression: String,
    },
    /// Storage elements.
    #[command(subcommand)]
    Rse(RseCommand),
    /// Accounts.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Quotas: limits and usage of accounts.
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Data identifiers: files, datasets, containers.
    #[command(subcommand)]
    Did(DidCommand),
    /// Replicas.
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// Put files on an RSE and register them; they are reached from this machine.
    Upload(Upload),
    /// Fetch a file, or the files of a collection, and compare their checksums.
    Download(Download),
    /// Show what is moving, at which rate, and why something waits.
    Transfers {
        /// How many of each at most.
        #[arg(long, default_value_t = 100)]
        most: u32,
    },
    /// Tell what became of a transfer.
    #[command(subcommand)]
    Transfer(TransferCommand),
    /// Run one pass of a daemon of the judge.
    Judge(JudgeArgs),
    /// Verify the invariants of the whole catalog; exit 1 and a list when one fails.
    Check(Check),
}

/// Arguments of `check`.
#[derive(Clone, Debug, Default, Args)]
pub struct Check {
    /// Mend counters of the catalog first; nothing in storage is changed.
    #[arg(long)]
    pub(super) repair: bool,
    /// Compare the storage of RSEs with the catalog too, both ways: what is missing, what differs,
    /// and files without a replica.
    #[arg(long)]
    pub(super) storage: bool,
    /// Only the storage of RSEs of this expression.
    #[arg(long, value_name = "EXPRESSION", requires = "storage")]
    pub(super) rse: Option<String>,
    /// Read every file and compare its checksums.
    #[arg(long, requires = "storage")]
    pub(super) checksums: bool,
}

/// Arguments of `upload`.
#[derive(Clone, Debug, Args)]
pub struct Upload {
    /// The RSE.
    pub rse: String,
    /// The scope the files are named in.
    #[arg(long)]
    pub scope: String,
    /// Another name for a single file.
    #[arg(long)]
    pub name: Option<String>,
    /// Attach them to this dataset, `scope:name`.
    #[arg(long)]
    pub dataset: Option<String>,
    /// The files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
}

/// Arguments of `download`.
#[derive(Clone, Debug, Args)]
pub struct Download {
    /// The file, dataset or container, `scope:name`.
    pub did: String,
    /// The folder to put it into; each scope has one of its own there.
    #[arg(long, default_value = ".")]
    pub into: PathBuf,
    /// Only from RSEs of this expression.
    #[arg(short, long)]
    pub expression: Option<String>,
    /// Replace files that are there with another content.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `add`.
#[derive(Clone, Debug, Args)]
pub struct Add {
    /// `scope:name`, one or several.
    #[arg(required = true)]
    pub(super) dids: Vec<String>,
    /// How many copies.
    #[arg(long, default_value_t = 1)]
    pub(super) copies: i64,
    /// Where they may be.
    #[arg(long, short)]
    pub(super) expression: String,
    /// The account whose quota is charged.
    #[arg(long)]
    pub(super) account: Option<String>,
    /// Which files share their RSEs: ALL, DATASET or NONE.
    #[arg(long, default_value = "DATASET")]
    pub(super) grouping: String,
    /// The RSE attribute that weighs the choice.
    #[arg(long)]
    pub(super) weight: Option<String>,
    /// Seconds until it expires.
    #[arg(long, allow_negative_numbers = true)]
    pub(super) lifetime: Option<i64>,
    /// Where copies may be made from.
    #[arg(long)]
    pub(super) source: Option<String>,
    /// The activity of the transfers, by which they are shared out.
    #[arg(long)]
    pub(super) activity: Option<String>,
    /// A word for people.
    #[arg(long)]
    pub(super) comment: Option<String>,
    /// Safe from deletion.
    #[arg(long)]
    pub(super) locked: bool,
    /// Somebody must approve it first.
    #[arg(long)]
    pub(super) ask_approval: bool,
    /// The injector applies it.
    #[arg(long = "async")]
    pub(super) asynchronous: bool,
    /// RSEs that cannot be written now are targets too.
    #[arg(long)]
    pub(super) ignore_availability: bool,
    /// Wait until all copies are there; exit 1 if the rule stops before.
    #[arg(long)]
    pub(super) wait: bool,
    /// Seconds after which to stop waiting, with exit 1; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "wait")]
    pub(super) timeout: u64,
}

/// Which rules to list.
#[derive(Clone, Debug, Default, Args)]
pub struct List {
    /// Only those of this account.
    #[arg(long)]
    pub(super) account: Option<String>,
    /// Only those in this scope; `*` stands for anything.
    #[arg(long)]
    pub(super) scope: Option<String>,
    /// Only those for this name.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// REPLICATING, OK, STUCK, SUSPENDED, WAITING_APPROVAL or INJECT.
    #[arg(long)]
    pub(super) state: Option<String>,
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum RseCommand {
    /// List RSEs, or those of an expression.
    List {
        /// Only those of this expression.
        expression: Option<String>,
    },
    /// Create an RSE.
    Add {
        /// The RSE.
        rse: String,
        /// DISK or TAPE.
        #[arg(long, default_value = "DISK")]
        kind: String,
        /// It is a staging area: rules there need a lifetime.
        #[arg(long)]
        staging: bool,
    },
    /// Show an RSE with its attributes, limits and usage.
    Show {
        /// The RSE.
        rse: String,
    },
    /// Set attributes, `key=value`.
    Set {
        /// The RSE.
        rse: String,
        /// The attributes, `key=value`.
        attributes: Vec<String>,
    },
    /// Remove an attribute.
    Unset {
        /// The RSE.
        rse: String,
        /// The attribute.
        key: String,
    },
    /// Set a limit such as MinFreeSpace or MaxSpaceAvailable.
    #[command(allow_negative_numbers = true)]
    Limit {
        /// The RSE.
        rse: String,
        /// The name of the limit.
        name: String,
        /// Bytes.
        bytes: i64,
    },
    /// Open or close an RSE for reading, writing, deleting: `write=false`.
    Availability {
        /// The RSE.
        rse: String,
        /// The operations that are allowed: `read=BOOL`, `write=BOOL`, `delete=BOOL`.
        flags: Vec<String>,
    },
    /// Say how its files are reached: `file:///FOLDER`, or scheme://host:port/prefix.
    Protocol {
        /// The RSE.
        rse: String,
        /// Where its files begin.
        url: String,
        /// Take this protocol away instead.
        #[arg(long)]
        remove: bool,
    },
    /// Say how far it is from one RSE to another: the nearest source is taken.
    Distance {
        /// From here.
        from: String,
        /// To here.
        to: String,
        /// How far.
        distance: i64,
    },
    /// Limit how many transfers run to the RSEs of an expression at once; -1 takes the limit away.
    #[command(allow_negative_numbers = true)]
    Transfers {
        /// The RSE expression.
        expression: String,
        /// How many at once.
        most: i64,
        /// Limit what is read from there instead.
        #[arg(long)]
        from: bool,
        /// Only transfers for this activity.
        #[arg(long)]
        activity: Option<String>,
    },
    /// Report what the storage has free.
    Usage {
        /// The RSE.
        rse: String,
        /// Bytes used.
        used: i64,
        /// Bytes free.
        free: i64,
    },
    /// Delete an RSE that holds nothing.
    Delete {
        /// The RSE.
        rse: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum AccountCommand {
    /// List accounts.
    List,
    /// Create an account.
    Add {
        /// The account.
        account: String,
        /// USER, GROUP or SERVICE.
        #[arg(long, default_value = "USER")]
        kind: String,
    },
    /// Give an account a scope.
    Scope {
        /// The account.
        account: String,
        /// The scope.
        scope: String,
    },
    /// Set an attribute, `key=value`.
    Set {
        /// The account.
        account: String,
        /// The attribute, `key=value`.
        attribute: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum QuotaCommand {
    /// Show limits and usage.
    Show {
        /// The account.
        account: String,
    },
    /// Set a limit on an RSE, or with --global over an expression; −1 means infinite.
    #[command(allow_negative_numbers = true)]
    Set {
        /// The account.
        account: String,
        /// The RSE, or with --global the expression.
        on: String,
        /// Bytes.
        bytes: i64,
        /// The limit is over an expression.
        #[arg(long)]
        global: bool,
    },
    /// Remove a limit.
    Unset {
        /// The account.
        account: String,
        /// The RSE, or with --global the expression.
        on: String,
        /// The limit is over an expression.
        #[arg(long)]
        global: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum DidCommand {
    /// Show what is below a data identifier.
    Tree {
        /// The data identifier, `scope:name`.
        did: String,
    },
    /// Create a dataset, or a container.
    Add {
        /// The data identifier, `scope:name`.
        did: String,
        /// A container instead of a dataset.
        #[arg(long)]
        container: bool,
        /// Seconds until it expires.
        #[arg(long)]
        lifetime: Option<i64>,
    },
    /// Attach children to a parent.
    Attach {
        /// The dataset or container, `scope:name`.
        parent: String,
        /// The data identifiers to attach, `scope:name`.
        #[arg(required = true)]
        children: Vec<String>,
    },
    /// Detach children from a parent.
    Detach {
        /// The dataset or container, `scope:name`.
        parent: String,
        /// The data identifiers to detach, `scope:name`.
        #[arg(required = true)]
        children: Vec<String>,
    },
    /// Close a dataset or container.
    Close {
        /// The data identifier, `scope:name`.
        did: String,
    },
    /// Show one data identifier.
    Show {
        /// The data identifier, `scope:name`.
        did: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum ReplicaCommand {
    /// Register files on an RSE.
    Add {
        /// The RSE.
        rse: String,
        /// The files, `scope:name:bytes[:adler32]`.
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// List the replicas below data identifiers.
    List {
        /// The data identifiers, `scope:name`.
        #[arg(required = true)]
        dids: Vec<String>,
        /// Also those that are not available.
        #[arg(long)]
        all: bool,
    },
    /// Declare a replica bad.
    Bad {
        /// The RSE.
        rse: String,
        /// The file, `scope:name`.
        file: String,
        /// Why.
        #[arg(long, default_value = "declared by hand")]
        reason: String,
    },
    /// List replicas whose files were found to be others than the catalog says, or missing.
    Suspicious {
        /// Only those on RSEs of this expression.
        expression: Option<String>,
    },
    /// Make a replica without locks obsolete.
    Tombstone {
        /// The RSE.
        rse: String,
        /// The file, `scope:name`.
        file: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum TransferCommand {
    /// The files have arrived on the RSE.
    Done {
        /// The RSE.
        rse: String,
        /// The files, `scope:name`.
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// The files could not be copied to the RSE.
    Failed {
        /// The RSE.
        rse: String,
        /// The files, `scope:name`.
        #[arg(required = true)]
        files: Vec<String>,
        /// The error of the transfer.
        #[arg(long, default_value = "the transfer failed")]
        error: String,
    },
}

/// Which daemon to run.
#[derive(Clone, Debug, Args)]
pub struct JudgeArgs {
    /// The daemon.
    #[arg(value_parser = ["evaluator", "repairer", "cleaner", "injector", "finisher", "reaper"])]
    pub(super) daemon: String,
    /// One pass and no more; the server runs the others.
    #[arg(long, required = true)]
    pub once: bool,
    /// The time it is to be, RFC 3339.
    #[arg(long)]
    pub(super) now: Option<String>,
}
