//! The words of `mainstay rules`, each defined once: parsing and help come from here.

use clap::{Args, Subcommand};

/// Replication rules: which copies of which files must exist.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Add a rule: so many copies of a data identifier on an RSE expression.
    Add(Add),
    /// List rules.
    List(List),
    /// Show one rule.
    Show { rule: String },
    /// Watch a rule until all its copies are there.
    Watch { rule: String },
    /// Say why each copy is where it is, why it is stuck, and what would unstick it.
    Explain {
        rule: String,
        /// Only this file (`scope:name`, or a name in the rule's scope).
        file: Option<String>,
    },
    /// Repair a stuck rule now.
    Repair { rule: String },
    /// Delete a rule at once.
    Delete {
        rule: String,
        /// Let it expire in an hour instead.
        #[arg(long)]
        soft: bool,
        /// Make replicas that lose their last lock obsolete at once.
        #[arg(long)]
        purge: bool,
    },
    /// Move a rule to another expression; the old one goes once the new one is OK.
    Move { rule: String, expression: String },
    /// Reduce the copies of a rule that is OK.
    Reduce {
        rule: String,
        copies: i64,
        /// Take no copies from here.
        #[arg(long)]
        exclude: Option<String>,
    },
    /// Approve a rule that waits for it.
    Approve { rule: String },
    /// Deny a rule that waits for approval.
    Deny {
        rule: String,
        #[arg(long)]
        reason: Option<String>,
    },
    /// Change an option of a rule, as `key=value` with a JSON value.
    Update { rule: String, options: Vec<String> },
    /// Evaluate an RSE expression and show which term took what.
    Expression { expression: String },
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
    /// Tell what became of a transfer.
    #[command(subcommand)]
    Transfer(TransferCommand),
    /// Run one pass of a daemon of the judge.
    Judge(JudgeArgs),
    /// Verify the invariants of the whole catalog; exit 1 and a list when one fails.
    Check {
        /// Mend counters.
        #[arg(long)]
        repair: bool,
    },
}

/// What a new rule says.
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
    /// Who pays.
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
    #[arg(long)]
    pub(super) activity: Option<String>,
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
    #[arg(long)]
    pub(super) ignore_availability: bool,
    /// Wait until all copies are there.
    #[arg(long)]
    pub(super) wait: bool,
}

/// Which rules to list.
#[derive(Clone, Debug, Default, Args)]
pub struct List {
    #[arg(long)]
    pub(super) account: Option<String>,
    #[arg(long)]
    pub(super) scope: Option<String>,
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
    List { expression: Option<String> },
    /// Create an RSE.
    Add {
        rse: String,
        /// DISK or TAPE.
        #[arg(long, default_value = "DISK")]
        kind: String,
        #[arg(long)]
        staging: bool,
    },
    /// Show an RSE with its attributes, limits and usage.
    Show { rse: String },
    /// Set attributes, `key=value`.
    Set { rse: String, attributes: Vec<String> },
    /// Remove an attribute.
    Unset { rse: String, key: String },
    /// Set a limit such as MinFreeSpace or MaxSpaceAvailable.
    #[command(allow_negative_numbers = true)]
    Limit { rse: String, name: String, bytes: i64 },
    /// Open or close an RSE for reading, writing, deleting: `write=false`.
    Availability { rse: String, flags: Vec<String> },
    /// Report what the storage has free.
    Usage { rse: String, used: i64, free: i64 },
    /// Delete an RSE that holds nothing.
    Delete { rse: String },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum AccountCommand {
    /// List accounts.
    List,
    /// Create an account.
    Add {
        account: String,
        /// USER, GROUP or SERVICE.
        #[arg(long, default_value = "USER")]
        kind: String,
    },
    /// Give an account a scope.
    Scope { account: String, scope: String },
    /// Set an attribute, `key=value`.
    Set { account: String, attribute: String },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum QuotaCommand {
    /// Show limits and usage.
    Show { account: String },
    /// Set a limit on an RSE, or with --global over an expression; −1 means infinite.
    #[command(allow_negative_numbers = true)]
    Set {
        account: String,
        on: String,
        bytes: i64,
        #[arg(long)]
        global: bool,
    },
    /// Remove a limit.
    Unset {
        account: String,
        on: String,
        #[arg(long)]
        global: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum DidCommand {
    /// Show what is below a data identifier.
    Tree { did: String },
    /// Create a dataset, or a container.
    Add {
        did: String,
        #[arg(long)]
        container: bool,
        #[arg(long)]
        lifetime: Option<i64>,
    },
    /// Attach children to a parent.
    Attach {
        parent: String,
        #[arg(required = true)]
        children: Vec<String>,
    },
    /// Detach children from a parent.
    Detach {
        parent: String,
        #[arg(required = true)]
        children: Vec<String>,
    },
    /// Close a dataset or container.
    Close { did: String },
    /// Show one data identifier.
    Show { did: String },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum ReplicaCommand {
    /// Register files on an RSE: `scope:name:bytes[:adler32]`.
    Add {
        rse: String,
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// List the replicas below data identifiers.
    List {
        #[arg(required = true)]
        dids: Vec<String>,
        /// Also those that are not available.
        #[arg(long)]
        all: bool,
    },
    /// Declare a replica bad.
    Bad {
        rse: String,
        file: String,
        #[arg(long, default_value = "declared by hand")]
        reason: String,
    },
    /// Make a replica without locks obsolete.
    Tombstone { rse: String, file: String },
}

#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "the help text says it")]
pub enum TransferCommand {
    /// The files have arrived on the RSE.
    Done {
        rse: String,
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// The files could not be copied to the RSE.
    Failed {
        rse: String,
        #[arg(required = true)]
        files: Vec<String>,
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
    /// One pass and no more.
    #[arg(long)]
    pub(super) once: bool,
    /// The time it is to be, RFC 3339.
    #[arg(long)]
    pub(super) now: Option<String>,
}
