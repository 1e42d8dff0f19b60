//! Rendering: statements and expressions with the names in scope.

use crate::access;
use crate::arguments::Args;
use crate::ast::{Arguments, CompareOp, Expr, For, Literal, MacroDef, Stmt, StmtKind, Target};
use crate::error::{Result, refuse};
use crate::filters;
use crate::meter;
use crate::methods;
use crate::names;
use crate::ops;
use crate::tests;
use crate::value::{Dict, LoopState, MacroValue, Object, Scope, Value};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Macros and loops that call themselves. Python's own limit comes at about as many.
const DEEPEST_CALL: usize = 190;

/// How a body ended.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

#[derive(Default)]
pub(crate) struct Interpreter {
    /// The text so far; within macros and blocks that are captured, theirs behind it.
    out: Vec<String>,
    /// Characters of the first text.
    written: usize,
    /// Where generation tags stood, in characters, as transformers counts them.
    pub generations: Vec<(usize, usize)>,
    calls: usize,
    /// Assignments to namespaces.
    assignments: u64,
}

impl Interpreter {
    /// The text of a template.
    pub fn render(&mut self, body: &[Stmt], scope: &Rc<Scope>) -> Result<String> {
        self.out.push(String::new());
        self.body(body, scope)?;
        Ok(self.out.pop().unwrap_or_default())
    }

    fn emit(&mut self, text: &str) -> Result<()> {
        meter::spend_bytes(text.len())?;
        if self.out.len() == 1 {
            self.written += text.chars().count();
        }
        if let Some(out) = self.out.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    /// What a body writes.
    fn captured(&mut self, write: impl FnOnce(&mut Interpreter) -> Result<()>) -> Result<String> {
        self.out.push(String::new());
        write(self)?;
        Ok(self.out.pop().unwrap_or_default())
    }

    fn body(&mut self, body: &[Stmt], scope: &Rc<Scope>) -> Result<Flow> {
        for (statement, line) in body {
            meter::spend(1)?;
            let flow = self
                .statement(statement, scope)
                .map_err(|error| error.at(*line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &StmtKind, scope: &Rc<Scope>) -> Result<Flow> {
        match statement {
            StmtKind::Data(text) => self.emit(text)?,
            StmtKind::Print(value) => {
                let text = self.eval(value, scope)?.to_text()?;
                self.emit(&text)?;
            }
            StmtKind::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock(target, filter, body) => {
                let inner = Scope::new(Some(scope));
                let text = self.captured(|it| it.body(body, &inner).map(drop))?;
                let mut value = Value::text(text)?;
                if let Some(filter) = filter {
                    value = self.filtered(filter, Some(value), scope)?;
                }
                self.assign(target, value, scope)?;
            }
            StmtKind::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.is_true() {
                        return self.body(body, scope);
                    }
                }
                return self.body(otherwise, scope);
            }
            StmtKind::For(def) => {
                let items = self.eval(&def.items, scope)?;
                return self.for_loop(def, &items, scope, 0);
            }
            StmtKind::With(values, body) => {
                let inner = Scope::new(Some(scope));
                for (target, value) in values {
                    let value = self.eval(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner);
            }
            StmtKind::Macro(def) => {
                let value = self.macro_value(def, scope);
                if let Some(name) = &def.name {
                    scope.set(name.clone(), value);
                }
            }
            StmtKind::Call(call, body) => {
                let caller = self.macro_value(body, scope);
                let text = self.call_with(call, Some(caller), scope)?.to_text()?;
                self.emit(&text)?;
            }
            StmtKind::FilterBlock(filter, body) => {
                let inner = Scope::new(Some(scope));
                let text = self.captured(|it| it.body(body, &inner).map(drop))?;
                let value = Value::text(text)?;
                let text = self.filtered(filter, Some(value), scope)?.to_text()?;
                self.emit(&text)?;
            }
            StmtKind::Block(body, is_scoped) => {
                let outer = if *is_scoped {
                    scope.clone()
                } else {
                    top(scope)
                };
                let inner = Scope::new(Some(&outer));
                self.body(body, &inner)?;
            }
            StmtKind::Generation(def) => self.generation(def, scope)?,
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// What stands between generation tags, which is a macro without a name to Jinja.
    fn generation(&mut self, def: &Arc<MacroDef>, scope: &Rc<Scope>) -> Result<()> {
        let body = MacroValue {
            def: def.clone(),
            scope: scope.clone(),
        };
        let text = self.call_macro(&body, Args::default())?;
        let start = self.written;
        self.generations.push((start, start + text.chars().count()));
        self.emit(&text)
    }

    fn macro_value(&self, def: &Arc<MacroDef>, scope: &Rc<Scope>) -> Value {
        Value::Object(Rc::new(Object::Macro(MacroValue {
            def: def.clone(),
            scope: scope.clone(),
        })))
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name.clone(), value),
            Target::Attribute(name, attribute) => {
                let Some(Value::Namespace(names)) = scope.get(name) else {
                    return refuse("cannot assign attribute on non-namespace object");
                };
                let attribute = methods::checked_name(attribute)?;
                names.borrow_mut().insert(attribute, value);
                self.assignments += 1;
            }
            Target::Tuple(targets) => {
                let values = value.items()?;
                if values.len() != targets.len() {
                    let (wanted, found) = (targets.len(), values.len());
                    return refuse(format!("values to unpack: expected {wanted}, got {found}"));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a loop takes an item.
    fn takes(&mut self, def: &For, item: &Value, scope: &Rc<Scope>) -> Result<bool> {
        let Some(test) = &def.test else {
            return Ok(true);
        };
        let inner = Scope::new(Some(scope));
        self.assign(&def.target, item.clone(), &inner)?;
        Ok(self.eval(test, &inner)?.is_true())
    }

    fn for_loop(
        &mut self,
        def: &Arc<For>,
        items: &Value,
        scope: &Rc<Scope>,
        depth: usize,
    ) -> Result<Flow> {
        let all = items.items()?;
        // All items and which are taken. Python asks about each when its turn comes.
        let mut taken = Vec::new();
        for (index, item) in all.iter().enumerate() {
            if self.takes(def, item, scope)? {
                taken.push(index);
            }
        }
        let assignments = self.assignments;
        let state = Rc::new(Object::Loop(RefCell::new(LoopState {
            items: taken.iter().map(|index| all[*index].clone()).collect(),
            index: 0,
            depth,
            last_changed: None,
            recursion: def.is_recursive.then(|| (def.clone(), scope.clone())),
        })));
        let (mut asked, mut has_completed) = (0, false);
        for (index, place) in taken.iter().enumerate() {
            if def.test.is_some() && assignments != self.assignments {
                self.check_takes(def, &all[asked..=*place], scope)?;
            }
            asked = place + 1;
            meter::spend(2)?;
            if let Object::Loop(state) = &*state {
                state.borrow_mut().index = index;
            }
            let inner = Scope::new(Some(scope));
            inner.set("loop".into(), Value::Object(state.clone()));
            self.assign(&def.target, all[*place].clone(), &inner)?;
            match self.body(&def.body, &inner)? {
                Flow::Next => has_completed = true,
                Flow::Continue => {}
                Flow::Break => {
                    asked = all.len();
                    break;
                }
            }
        }
        if def.test.is_some() && assignments != self.assignments && asked < all.len() {
            let rest = &all[asked..];
            for item in rest {
                if self.takes(def, item, scope)? {
                    return refuse("a loop's condition that its body changes is not implemented");
                }
            }
        }
        // Jinja's own rule: a turn that breaks off does not count.
        if !has_completed {
            return self.body(&def.otherwise, &Scope::new(Some(scope)));
        }
        Ok(Flow::Next)
    }

    /// Refuses a loop whose body has changed which items it takes: the last of these and no other.
    fn check_takes(&mut self, def: &For, items: &[Value], scope: &Rc<Scope>) -> Result<()> {
        for (index, item) in items.iter().enumerate() {
            if self.takes(def, item, scope)? != (index + 1 == items.len()) {
                return refuse("a loop's condition that its body changes is not implemented");
            }
        }
        Ok(())
    }

    pub fn eval(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        meter::spend(1)?;
        Ok(match expr {
            Expr::Literal(literal) => match literal {
                Literal::None => Value::None,
                Literal::Bool(value) => Value::Bool(*value),
                Literal::Int(value) => Value::Int(*value),
                Literal::Float(value) => Value::Float(*value),
                Literal::Text(text) => Value::Str(text.clone()),
            },
            Expr::Name(name) => match scope.get(name) {
                Some(value) => value,
                None => match methods::GLOBALS.iter().find(|it| ***it == **name) {
                    Some(global) => Value::function(global),
                    None => Value::undefined(format!("'{name}' is undefined")),
                },
            },
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?)?,
            Expr::List(items) => Value::list(self.all(items, scope)?)?,
            Expr::Dict(items) => {
                let mut dict = Dict::default();
                for (key, value) in items {
                    let key = self.eval(key, scope)?;
                    dict.insert(key, self.eval(value, scope)?)?;
                }
                Value::dict(dict)
            }
            Expr::If(test, value, otherwise) => {
                if self.eval(test, scope)?.is_true() {
                    self.eval(value, scope)?
                } else if let Some(otherwise) = otherwise {
                    self.eval(otherwise, scope)?
                } else {
                    Value::undefined(
                        "the inline if-expression evaluated to false and no else section was defined.",
                    )
                }
            }
            Expr::Or(left, right) => match self.eval(left, scope)? {
                left if left.is_true() => left,
                _ => self.eval(right, scope)?,
            },
            Expr::And(left, right) => match self.eval(left, scope)? {
                left if left.is_true() => self.eval(right, scope)?,
                left => left,
            },
            Expr::Not(value) => Value::Bool(!self.eval(value, scope)?.is_true()),
            Expr::Compare(first, rest) => self.compare(first, rest, scope)?,
            Expr::Binary(op, left, right) => {
                let left = self.eval(left, scope)?;
                ops::binary(*op, &left, &self.eval(right, scope)?)?
            }
            Expr::Sign(is_minus, value) => ops::signed(*is_minus, &self.eval(value, scope)?)?,
            Expr::Concat(parts) => {
                let mut text = String::new();
                for part in self.all(parts, scope)? {
                    text.push_str(&part.to_text()?);
                }
                Value::text(text)?
            }
            Expr::Attribute(value, name) => access::attribute(&self.eval(value, scope)?, name)?,
            Expr::Item(value, item) => self.item(value, item, scope)?,
            Expr::Slice(_) => return refuse("a slice stands alone"),
            Expr::Call(..) => self.call_with(expr, None, scope)?,
            Expr::Filter(..) => self.filtered(expr, None, scope)?,
            Expr::Test(value, name, arguments) => {
                let value = self.eval(value, scope)?;
                let args = self.arguments(arguments, scope)?;
                if !names::is_test(name) {
                    return refuse(format!("No test named '{name}' found."));
                }
                Value::Bool(tests::apply(name, &value, &args)?)
            }
        })
    }

    fn all(&mut self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn compare(
        &mut self,
        first: &Expr,
        rest: &[(CompareOp, Expr)],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let mut left = self.eval(first, scope)?;
        for (op, right) in rest {
            let right = self.eval(right, scope)?;
            let is_true = match op {
                CompareOp::Eq => left.equals(&right)?,
                CompareOp::Ne => !left.equals(&right)?,
                CompareOp::Lt => left.order(&right, "<")?.is_some_and(|it| it.is_lt()),
                CompareOp::Le => left.order(&right, "<=")?.is_some_and(|it| it.is_le()),
                CompareOp::Gt => left.order(&right, ">")?.is_some_and(|it| it.is_gt()),
                CompareOp::Ge => left.order(&right, ">=")?.is_some_and(|it| it.is_ge()),
                CompareOp::In => ops::contains(&right, &left)?,
                CompareOp::NotIn => !ops::contains(&right, &left)?,
            };
            if !is_true {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn item(&mut self, value: &Expr, item: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        let value = self.eval(value, scope)?;
        let Expr::Slice(parts) = item else {
            return access::item(&value, &self.eval(item, scope)?);
        };
        let mut bounds = Vec::new();
        for part in &**parts {
            bounds.push(match part {
                Some(part) => self.eval(part, scope)?,
                None => Value::None,
            });
        }
        // A slice is Python's own, without Jinja's way to attributes.
        ops::slice(&value, [&bounds[0], &bounds[1], &bounds[2]])
    }

    fn arguments(&mut self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Args> {
        let mut args = Args {
            positional: self.all(&arguments.positional, scope)?,
            named: Vec::new(),
        };
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(list) = &arguments.list {
            args.positional.extend(self.eval(list, scope)?.items()?);
        }
        if let Some(map) = &arguments.map {
            let Value::Dict(dict) = self.eval(map, scope)? else {
                return refuse("argument after ** must be a mapping");
            };
            for (key, value) in dict.entries() {
                let Some(name) = key.as_str() else {
                    return refuse("keywords must be strings");
                };
                if args.named.iter().any(|(found, _)| found == name) {
                    return refuse(format!("got multiple values for keyword argument '{name}'"));
                }
                args.named.push((name.clone(), value.clone()));
            }
        }
        Ok(args)
    }

    /// Filters of a value, or of what a block gives.
    fn filtered(&mut self, expr: &Expr, block: Option<Value>, scope: &Rc<Scope>) -> Result<Value> {
        let Expr::Filter(value, name, arguments) = expr else {
            return self.eval(expr, scope);
        };
        let value = match (value, block) {
            (Some(value), block) => self.filtered(value, block, scope)?,
            (None, Some(block)) => block,
            (None, None) => return refuse("a filter has no value"),
        };
        meter::spend(1)?;
        let args = self.arguments(arguments, scope)?;
        if !names::is_filter(name) {
            return refuse(format!("No filter named '{name}' found."));
        }
        filters::apply(name, &value, &args)
    }

    fn call_with(
        &mut self,
        call: &Expr,
        caller: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let Expr::Call(callee, arguments) = call else {
            return refuse("expected call");
        };
        let callee = self.eval(callee, scope)?;
        let mut args = self.arguments(arguments, scope)?;
        if let Some(caller) = caller {
            args.named.push(("caller".into(), caller));
        }
        let Value::Object(object) = callee.defined()? else {
            return refuse(format!("'{}' object is not callable", callee.type_name()));
        };
        match &**object {
            Object::Function(name) => methods::function(name, &args),
            Object::Method(value, name) => methods::call(value, name, &args),
            Object::Macro(it) => Value::text(self.call_macro(it, args)?),
            Object::Joiner { separator, is_used } => {
                args.none("joiner")?;
                let is_first = !is_used.replace(true);
                Ok(if is_first {
                    Value::str("")
                } else {
                    separator.clone()
                })
            }
            Object::Loop(state) => {
                let recursion = state.borrow().recursion.clone();
                let Some((def, outer)) = recursion else {
                    return refuse(
                        "The loop must have the 'recursive' marker to be called recursively.",
                    );
                };
                let [items] = args.bind("loop", ["iterable"], 1)?;
                let items = items.unwrap_or(Value::None);
                let depth = state.borrow().depth + 1;
                let text = self.deeper(|it| {
                    it.captured(|it| it.for_loop(&def, &items, &outer, depth).map(drop))
                })?;
                Value::text(text)
            }
            Object::Cycler { .. } => refuse("'Cycler' object is not callable"),
        }
    }

    /// Calls one level deeper.
    fn deeper<T>(&mut self, call: impl FnOnce(&mut Interpreter) -> Result<T>) -> Result<T> {
        if self.calls == DEEPEST_CALL {
            return refuse("macros or loops recurse too deeply");
        }
        self.calls += 1;
        let called = call(self);
        self.calls -= 1;
        called
    }

    fn call_macro(&mut self, it: &MacroValue, args: Args) -> Result<String> {
        let def = &it.def;
        let shown = || def.name.clone().unwrap_or_else(|| "caller".into());
        let scope = Scope::new(Some(&it.scope));
        let Args {
            positional,
            mut named,
        } = args;
        let mut take = |name: &str| {
            let place = named.iter().position(|(found, _)| &**found == name)?;
            Some(named.remove(place).1)
        };
        let count = def.parameters.len();
        let given = positional.len().min(count);
        let mut missing = Vec::new();
        for (index, name) in def.parameters.iter().enumerate() {
            let value = match positional.get(index) {
                Some(value) => Some(value.clone()),
                None => take(name),
            };
            match value {
                Some(value) => scope.set(name.clone(), value),
                None => missing.push(index),
            }
        }
        let takes_caller = def.parameters.iter().any(|name| &**name == "caller");
        if def.uses_caller && !takes_caller {
            let caller = take("caller");
            let caller = caller.filter(|caller| !matches!(caller, Value::None));
            let caller = caller.unwrap_or_else(|| Value::undefined("No caller defined"));
            scope.set("caller".into(), caller);
        }
        if def.uses_kwargs {
            let mut kwargs = Dict::default();
            for (name, value) in named {
                kwargs.insert(Value::Str(name), value)?;
            }
            scope.set("kwargs".into(), Value::dict(kwargs));
        } else if let Some((name, _)) = named.first() {
            let shown = shown();
            return refuse(format!(
                "macro '{shown}' takes no keyword argument '{name}'"
            ));
        }
        if def.uses_varargs {
            let rest = positional[given..].to_vec();
            scope.set("varargs".into(), Value::tuple(rest)?);
        } else if positional.len() > count {
            let shown = shown();
            return refuse(format!(
                "macro '{shown}' takes not more than {count} argument(s)"
            ));
        }
        for index in missing {
            let name = &def.parameters[index];
            let usual = (index + def.defaults.len()).checked_sub(count);
            let value = match usual.and_then(|usual| def.defaults.get(usual)) {
                Some(usual) => self.eval(usual, &scope)?,
                None => Value::undefined(format!("parameter '{name}' was not provided")),
            };
            scope.set(name.clone(), value);
        }
        self.deeper(|interpreter| interpreter.captured(|it| it.body(&def.body, &scope).map(drop)))
    }
}

/// The scope of the template's own assignments: that within the outermost.
fn top(scope: &Rc<Scope>) -> Rc<Scope> {
    let mut found = scope.clone();
    while let Some(outer) = &found.outer {
        if outer.outer.is_none() {
            break;
        }
        found = outer.clone();
    }
    found
}
