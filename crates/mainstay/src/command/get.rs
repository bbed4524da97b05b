//! `mainstay get`: prints objects as tables of the server, or as JSON, YAML or names.

use clap::Args;
use mainstay_terminal::output::{self, Format, Table, cell};
use serde_json::{Value, json};

use crate::client::discovery::{Discovery, Resource};
use crate::client::watch::{Change, Event, Follow, list};
use crate::client::{Call, Client, JSON, with_query};
use crate::connect::Connect;
use crate::error::{Error, Failures};
use crate::select::{Scope, Selectors, Wanted, wanted};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
    application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

/// Show objects
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay get nodes                          every node, in a table
  mainstay get cm,leases -A -o wide           several types, all namespaces, all columns
  mainstay get cm/settings -o yaml            one object as YAML
  mainstay get cm -l app=web -w               those with a label, and every change to them
  mainstay get all                            every type in the category `all`")]
pub(crate) struct Get {
    /// `TYPE[,TYPE] [NAME…]` or `TYPE/NAME…`; types by plural, singular, kind or short name
    #[arg(value_name = "TYPE|TYPE/NAME", required = true)]
    what: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    /// Objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    selectors: Selectors,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
    /// After the list, print every change until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Do not print the header line
    #[arg(long)]
    no_headers: bool,
    /// Add a column with the labels
    #[arg(long)]
    show_labels: bool,
    /// Keep metadata.managedFields in JSON and YAML
    #[arg(long)]
    show_managed_fields: bool,
    /// Exit with code 0 even if a named object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    connect: Connect,
}

impl Get {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let discovery = Discovery::load(&client).await?;
        let wanted = wanted(&discovery, &self.what)?;
        if self.all_namespaces && wanted.iter().any(|wanted| !wanted.names.is_empty()) {
            return Err(Error::usage("a name cannot be combined with --all-namespaces"));
        }
        if !self.selectors.is_empty() && wanted.iter().any(|wanted| !wanted.names.is_empty()) {
            return Err(Error::usage("selectors and names cannot be combined"));
        }
        if self.watch {
            return self.follow(&client, &wanted).await;
        }
        match self.output {
            Format::Json | Format::Yaml => self.objects(&client, &wanted).await,
            Format::Table | Format::Wide | Format::Name => self.tables(&client, &wanted).await,
        }
    }

    fn namespace<'a>(&'a self, client: &'a Client) -> Option<&'a str> {
        (!self.all_namespaces).then(|| self.scope.namespace(client))
    }

    /// The requested objects of one type: one answer for a collection, one for each name.
    async fn answers(
        &self,
        client: &Client,
        wanted: &Wanted,
        accept: &'static str,
        failures: &mut Failures,
    ) -> Result<Vec<Value>, Error> {
        let Wanted { resource, names } = wanted;
        let namespace = self.namespace(client);
        let mut answers = Vec::new();
        if names.is_empty() {
            let path = resource.collection(namespace);
            let answer = list(client, &path, &self.selectors.query(), accept).await;
            answers.extend(failures.note(answer.map_err(Error::from))?);
        }
        for name in names {
            let path = resource.object(namespace.unwrap_or_default(), name);
            match client.json(Call::get(path).accept(accept)).await {
                Err(error) if self.ignore_not_found && error.is_not_found() => {}
                answer => answers.extend(failures.note(answer.map_err(Error::from))?),
            }
        }
        Ok(answers)
    }

    async fn objects(&self, client: &Client, wanted: &[Wanted]) -> Result<u8, Error> {
        let mut failures = Failures::default();
        let mut items = Vec::new();
        let mut single = wanted.len() == 1 && wanted[0].names.len() == 1;
        for wanted in wanted {
            for answer in self.answers(client, wanted, JSON, &mut failures).await? {
                match answer["items"].as_array() {
                    Some(list) if wanted.names.is_empty() => {
                        items.extend(list.iter().map(|item| whole(item, &wanted.resource)));
                    }
                    _ => items.push(answer),
                }
            }
        }
        single &= items.len() == 1;
        let value = match items.pop() {
            Some(item) if single => item,
            None if wanted.iter().all(|wanted| !wanted.names.is_empty()) => {
                return Ok(failures.code());
            }
            last => {
                items.extend(last);
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
            }
        };
        self.print(&value)?;
        Ok(failures.code())
    }

    fn print(&self, value: &Value) -> Result<(), Error> {
        let mut value = value.clone();
        if !self.show_managed_fields {
            without_managed_fields(&mut value);
        }
        let text = match self.output {
            Format::Yaml => output::yaml(&value),
            _ => output::json(&value),
        };
        Ok(output::print(&text)?)
    }

    async fn tables(&self, client: &Client, wanted: &[Wanted]) -> Result<u8, Error> {
        let mut failures = Failures::default();
        let mut printed = false;
        for one in wanted {
            let mut table = Table::default();
            for answer in self.answers(client, one, TABLE, &mut failures).await? {
                let more = self.table(&one.resource, &answer, wanted.len() > 1);
                table.headings = more.headings;
                table.rows.extend(more.rows);
            }
            if table.rows.is_empty() {
                continue;
            }
            if self.output == Format::Name {
                self.print_rows(&one.resource, &table, &mut Vec::new(), false)?;
            } else {
                if printed {
                    output::print_line("")?;
                }
                self.print_rows(&one.resource, &table, &mut Vec::new(), !self.no_headers)?;
            }
            printed = true;
        }
        if !printed && failures.code() == 0 && !self.ignore_not_found {
            let place = match self.namespace(client) {
                Some(namespace) if wanted.iter().any(|wanted| wanted.resource.namespaced) => {
                    format!(" in namespace {namespace:?}")
                }
                _ => String::new(),
            };
            anstream::eprintln!("No resources found{place}.");
        }
        Ok(failures.code())
    }

    fn print_rows(
        &self,
        resource: &Resource,
        table: &Table,
        widths: &mut Vec<usize>,
        headings: bool,
    ) -> Result<(), Error> {
        if self.output != Format::Name {
            return Ok(output::print(&table.render(headings, widths))?);
        }
        let label = resource.label();
        let lines: String = table
            .rows
            .iter()
            .filter_map(|row| row.first())
            .map(|name| format!("{label}/{name}\n"))
            .collect();
        Ok(output::print(&lines)?)
    }

    /// The server's table, cut to the columns asked for.
    fn table(&self, resource: &Resource, answer: &Value, several: bool) -> Table {
        if self.output == Format::Name {
            let rows = objects_of(answer).map(|object| vec![cell(&object["metadata"]["name"])]);
            return Table { headings: Vec::new(), rows: rows.collect() };
        }
        let columns = columns(answer, self.output == Format::Wide);
        let with_namespace = self.all_namespaces && resource.namespaced;
        let mut headings: Vec<String> = Vec::new();
        if with_namespace {
            headings.push("NAMESPACE".to_owned());
        }
        headings.extend(columns.iter().map(|(_, name)| name.to_uppercase()));
        if self.show_labels {
            headings.push("LABELS".to_owned());
        }
        let rows = rows_of(answer).map(|(cells, object)| {
            let metadata = &object["metadata"];
            let mut row = Vec::new();
            if with_namespace {
                row.push(cell(&metadata["namespace"]));
            }
            for (index, name) in &columns {
                let text = cells.get(*index).map(cell).unwrap_or_default();
                let is_name = several && name.eq_ignore_ascii_case("name");
                row.push(if is_name { format!("{}/{text}", resource.label()) } else { text });
            }
            if self.show_labels {
                row.push(labels(metadata));
            }
            row
        });
        Table { rows: rows.collect(), headings }
    }

    async fn follow(&self, client: &Client, wanted: &[Wanted]) -> Result<u8, Error> {
        let [Wanted { resource, names }] = wanted else {
            return Err(Error::usage(
                "--watch follows one type at a time; `mainstay watch` follows several",
            ));
        };
        let query = match names.as_slice() {
            [] => self.selectors.query(),
            [name] => Selectors::named(name).query(),
            _ => return Err(Error::usage("--watch follows one object, or all of a type")),
        };
        let accept = match self.output {
            Format::Json | Format::Yaml => JSON,
            _ => TABLE,
        };
        let path = resource.collection(self.namespace(client));
        let mut follow = Follow::new(client, path, query, accept);
        let mut widths = Vec::new();
        let mut headings = !self.no_headers && self.output != Format::Name;
        // A watch sends the columns once; later tables have rows only.
        let mut definitions = Value::Null;
        loop {
            let mut answer = match follow.next().await? {
                Change::Listed(answer) | Change::Event(Event { object: answer, .. }) => answer,
            };
            if accept == JSON {
                for object in objects_of(&answer) {
                    if self.output == Format::Yaml {
                        output::print("---\n")?;
                    }
                    self.print(&whole(object, resource))?;
                }
                continue;
            }
            if answer["columnDefinitions"].as_array().is_none_or(Vec::is_empty) {
                answer["columnDefinitions"] = definitions.clone();
            } else {
                definitions = answer["columnDefinitions"].clone();
            }
            let table = self.table(resource, &answer, false);
            if !table.rows.is_empty() {
                self.print_rows(resource, &table, &mut widths, headings)?;
                headings = false;
            }
        }
    }
}

/// Removes managedFields, which is long and seldom wanted.
fn without_managed_fields(value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(without_managed_fields);
    }
}

/// An object of a list, with the apiVersion and kind that items of lists lack.
fn whole(item: &Value, resource: &Resource) -> Value {
    let mut item = item.clone();
    if let Some(object) = item.as_object_mut() {
        object.entry("apiVersion").or_insert_with(|| resource.api_version().into());
        object.entry("kind").or_insert_with(|| resource.kind.clone().into());
    }
    item
}

/// The columns to print, by index and name. An answer that is not a table has names only.
fn columns(answer: &Value, wide: bool) -> Vec<(usize, String)> {
    let Some(definitions) = answer["columnDefinitions"].as_array() else {
        return vec![(0, "Name".to_owned())];
    };
    let shown = |column: &Value| wide || column["priority"].as_i64().unwrap_or(0) == 0;
    definitions
        .iter()
        .enumerate()
        .filter(|(_, column)| shown(column))
        .map(|(index, column)| (index, cell(&column["name"])))
        .collect()
}

/// The rows of a table, or of a plain object or list, with the object of each.
fn rows_of(answer: &Value) -> impl Iterator<Item = (Vec<Value>, &Value)> {
    let rows = answer["rows"].as_array();
    let table = rows.into_iter().flatten().map(|row| {
        let cells = row["cells"].as_array().cloned().unwrap_or_default();
        (cells, &row["object"])
    });
    let plain = objects_of(answer)
        .filter(move |_| rows.is_none())
        .map(|object| (vec![object["metadata"]["name"].clone()], object));
    table.chain(plain)
}

/// The objects of a table, a list, or the object itself.
fn objects_of(answer: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    if let Some(rows) = answer["rows"].as_array() {
        return Box::new(rows.iter().map(|row| &row["object"]));
    }
    if answer["kind"] == "Table" {
        return Box::new(std::iter::empty());
    }
    match answer["items"].as_array() {
        Some(items) => Box::new(items.iter()),
        None => Box::new(std::iter::once(answer)),
    }
}

fn labels(metadata: &Value) -> String {
    let Some(labels) = metadata["labels"].as_object().filter(|labels| !labels.is_empty()) else {
        return "<none>".to_owned();
    };
    let pairs: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={}", cell(value))).collect();
    pairs.join(",")
}

/// One object by name, as JSON.
pub(crate) async fn object(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Value, Error> {
    let path = with_query(&resource.object(namespace, name), &[]);
    Ok(client.json(Call::get(path)).await?)
}
