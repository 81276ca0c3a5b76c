//! A resource of the tests, without nodes: what is true of it is true of the machinery.
//!
//! Its store is the test's to write. A widget named `panics` panics in its hooks, one named `hangs` never returns. The name of
//! one that is `taken` in color is always taken by another.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use sandbox_apiserver::{
    apiserver::{
        Builder, Column, Context, Create, Created, Definition, Deleted, Deletion, GoawayChance,
        Invoke, Invoked, NotUpdated, ObjectType, Resource, Status, Update, Version,
    },
    meta::{ResourceVersion, UnixTime},
    schema::TypeSchema,
    store::{Change, Key, Limits, Store, Stored, Value as StoreValue},
};
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::harness::{ADMIN, Client, Door};

pub(crate) const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
pub(crate) const ALL_WIDGETS: &str = "/apis/example.com/v1/widgets";

#[derive(Clone, Debug)]
pub(crate) struct Widget {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) color: String,
}

impl StoreValue for Widget {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn weight(&self) -> usize {
        100
    }
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "described, never made")]
struct WidgetSpec {
    /// What it looks like.
    color: Option<String>,
}

#[derive(JsonSchema)]
struct WidgetStatus {}

pub(crate) struct Widgets {
    definition: Definition,
    pub(crate) store: Store<Widget>,
    /// Creates that came to their hook.
    pub(crate) n_creates: AtomicUsize,
}

/// A server of widgets.
pub(crate) struct Workshop {
    pub(crate) door: Door,
    pub(crate) client: Client,
    pub(crate) widgets: Arc<Widgets>,
}

impl Workshop {
    pub(crate) async fn open() -> Self {
        Self::with_history(Limits::default()).await
    }

    pub(crate) async fn with_history(history: Limits) -> Self {
        Self::with(history, GoawayChance::default()).await
    }

    pub(crate) async fn with(history: Limits, goaway_chance: GoawayChance) -> Self {
        let widgets = Arc::new(Widgets {
            definition: mk_definition(),
            store: Store::new(ResourceVersion::from_u64(1_000).unwrap(), history),
            n_creates: AtomicUsize::new(0),
        });
        let door = Door::open().await;
        let builder = Builder {
            goaway_chance,
            ..door.builder()
        };
        door.serve(builder.serve(widgets.clone()).unwrap());
        let client = door.client(ADMIN).await;
        Self {
            door,
            client,
            widgets,
        }
    }

    /// Stores a widget, and returns its version.
    pub(crate) fn put(&self, name: &str, color: &str) -> String {
        self.put_in("default", name, color)
    }

    pub(crate) fn put_in(&self, namespace: &str, name: &str, color: &str) -> String {
        let widget = mk_widget(namespace, name, color);
        self.widgets.store.commit([Change::Put(widget)]);
        self.head()
    }

    pub(crate) fn put_many(&self, count: usize) {
        let many = (0..count)
            .map(|number| Change::Put(mk_widget("default", &format!("w-{number:05}"), "red")));
        self.widgets.store.commit(many);
    }

    pub(crate) fn remove(&self, name: &str) -> String {
        let key = Key::new("default", name);
        self.widgets.store.commit([Change::Delete(key)]);
        self.head()
    }

    pub(crate) fn head(&self) -> String {
        self.widgets.store.head().to_string()
    }
}

fn mk_widget(namespace: &str, name: &str, color: &str) -> Widget {
    Widget {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        color: color.to_owned(),
    }
}

fn mk_definition() -> Definition {
    let documented = TypeSchema::spec_and_status::<WidgetSpec, WidgetStatus>("A widget.").unwrap();
    let object = ObjectType::new("Widget", documented);
    let schema = object.compile().unwrap();
    Definition {
        group: "example.com",
        kind: "Widget",
        plural: "widgets",
        singular: "widget",
        short_names: &[],
        categories: &[],
        namespaced: true,
        verbs: &["create", "delete", "get", "list", "update", "watch"],
        versions: vec![Version {
            name: "v1",
            object,
            schema,
            columns: &[Column {
                name: "Color",
                kind: "string",
                description: "What it looks like.",
                priority: 0,
            }],
            scale: false,
            deprecation: Some("example.com/v1 Widget is deprecated"),
        }],
        status: false,
        subresources: Vec::new(),
        selectable_fields: &["spec.color"],
    }
}

impl Widgets {
    async fn misbehave(&self, name: &str) {
        match name {
            "panics" => panic!("on purpose"),
            "hangs" => std::future::pending().await,
            _ => {}
        }
    }

    fn find(&self, name: &str) -> Arc<Stored<Widget>> {
        self.store.get("default", name).unwrap()
    }
}

impl Resource for Widgets {
    type Object = Widget;

    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn store(&self) -> &Store<Widget> {
        &self.store
    }

    fn encode(&self, widget: &Widget, at: ResourceVersion, _version: usize, out: &mut Vec<u8>) {
        let mut object = json!({
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "spec": {"color": widget.color},
        });
        object["metadata"] = metadata(widget, at);
        serde_json::to_writer(out, &object).unwrap();
    }

    fn encode_metadata(&self, widget: &Widget, at: ResourceVersion, out: &mut Vec<u8>) {
        serde_json::to_writer(out, &metadata(widget, at)).unwrap();
    }

    fn encode_cells(&self, widget: &Widget, _version: usize, _now: UnixTime, out: &mut Vec<u8>) {
        out.push(b',');
        serde_json::to_writer(out, &widget.color).unwrap();
    }

    fn label<'a>(&self, widget: &'a Widget, key: &str) -> Option<Cow<'a, str>> {
        (key == "color").then(|| widget.color.as_str().into())
    }

    fn field<'a>(&self, widget: &'a Widget, path: &str) -> Option<Cow<'a, str>> {
        (path == "spec.color").then(|| widget.color.as_str().into())
    }

    fn uid(&self, widget: &Widget) -> String {
        format!("uid-of-{}", widget.name)
    }

    fn is_deleted(&self, _widget: &Widget) -> bool {
        false
    }

    fn validate_create(&self, _create: &Create) -> Result<(), Status> {
        Ok(())
    }

    fn preview(&self, create: &Create) -> Value {
        create.object.clone()
    }

    async fn create(&self, context: &Context, create: Create) -> Result<Created<Widget>, Status> {
        self.n_creates.fetch_add(1, Ordering::Relaxed);
        self.misbehave(&create.key.name).await;
        let color = create.object["spec"]["color"].as_str().unwrap_or("none");
        if color == "taken" {
            return Err(Status::already_exists(&self.definition, &create.key.name));
        }
        for number in 0..color
            .strip_prefix("warn-")
            .map_or(0, |n| n.parse().unwrap())
        {
            context.warn(format!("{number} {}", "\"x\"".repeat(100)));
        }
        let widget = mk_widget(&create.key.namespace, &create.key.name, color);
        self.store.commit([Change::Put(widget)]);
        Ok(Created {
            object: self.find(&create.key.name),
            once: Vec::new(),
        })
    }

    fn convert(&self, _object: &mut Value, _from: usize, _to: usize) {}

    fn is_reserved(&self, _key: &str) -> bool {
        false
    }

    fn validate_update(&self, _update: &Update<Widget>) -> Result<(), Status> {
        Ok(())
    }

    async fn update(
        &self,
        _context: &Context,
        update: Update<Widget>,
    ) -> Result<Arc<Stored<Widget>>, NotUpdated> {
        let name = &update.old.value.name;
        let color = update.new_json["spec"]["color"].as_str().unwrap_or("none");
        let widget = mk_widget(&update.old.value.namespace, name, color);
        self.store.commit([Change::Put(widget)]);
        Ok(self.find(name))
    }

    async fn delete(
        &self,
        _context: &Context,
        object: Arc<Stored<Widget>>,
        _deletion: Deletion,
    ) -> Result<Deleted<Widget>, NotUpdated> {
        self.misbehave(&object.value.name).await;
        let Widget {
            namespace, name, ..
        } = &object.value;
        let key = Key::new(namespace.as_str(), name.as_str());
        self.store.commit([Change::Delete(key)]);
        Ok(Deleted::Gone(object))
    }

    async fn invoke(
        &self,
        _context: &Context,
        _invoke: Invoke<Widget>,
    ) -> Result<Invoked<Widget>, Status> {
        Err(Status::resource_not_found())
    }
}

fn metadata(widget: &Widget, at: ResourceVersion) -> Value {
    json!({
        "name": widget.name,
        "namespace": widget.namespace,
        "labels": {"color": widget.color},
        "resourceVersion": at.to_string(),
        "uid": format!("uid-of-{}", widget.name),
    })
}
