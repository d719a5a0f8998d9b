//! Mutants of a Rust file.

use std::collections::BTreeSet;
use std::ops::Range;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    AngleBracketedGenericArguments, Attribute, BinOp, Block, Expr, ExprBinary, ExprIf, ExprLit,
    ExprMethodCall, ExprRepeat, ExprUnary, ExprWhile, ImplItemFn, Item, ItemConst, ItemImpl,
    ItemMod, ItemStatic, Lit, Local, Macro, Meta, Pat, PatGuard, ReturnType, Signature, Stmt,
    Token, Type, UnOp,
};

use super::mutant::{Found, Kind, Mutant};

/// Pairs of methods that can be mistaken for each other: one is wrong where the other is meant.
const METHODS: [(&str, &str); 9] = [
    ("wrapping_add", "wrapping_sub"),
    ("saturating_add", "saturating_sub"),
    ("checked_add", "checked_sub"),
    ("wrapping_shl", "wrapping_shr"),
    ("min", "max"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("is_some_and", "is_none_or"),
    ("fetch_or", "fetch_and"),
];

/// Macros in which nothing is changed: they decide nothing that runs, or are text for people.
const WORDS: [&str; 9] = [
    "assert",
    "assert_eq",
    "debug_assert",
    "global_asm",
    "panic",
    "println",
    "format_args",
    "macro_rules",
    "unreachable",
];

/// The mutants of a file; none if it is only for tests.
///
/// # Errors
///
/// It is not Rust.
pub fn mutants(file: &str, text: &str) -> Result<Vec<Mutant>, String> {
    let tree = syn::parse_file(text).map_err(|why| format!("{file}: {why}"))?;
    let mut maker = Maker {
        found: Found::of(file, text),
        places: Vec::new(),
        units: BTreeSet::new(),
    };
    if !tree.attrs.iter().any(is_for_tests) {
        maker.visit_file(&tree);
    }
    Ok(maker.found.mutants)
}

struct Maker<'a> {
    found: Found<'a>,
    /// Names of the items that it is in.
    places: Vec<String>,
    /// Starts of blocks that have no value: their last expression can be left out, too.
    units: BTreeSet<usize>,
}

/// `#[cfg(test)]`, alone or with more, or `#[test]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => list.path.is_ident("cfg") && names_tests(list.tokens.clone()),
        Meta::NameValue(_) => false,
    }
}

fn names_tests(words: TokenStream) -> bool {
    words.into_iter().any(|word| match word {
        TokenTree::Ident(name) => name == "test",
        TokenTree::Group(inner) => names_tests(inner.stream()),
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        _ => &[],
    }
}

fn range(span: Span) -> Range<usize> {
    span.byte_range()
}

/// Returns the operator that can be mistaken for this one.
fn other(operator: &BinOp) -> Option<&'static str> {
    Some(match operator {
        BinOp::Add(_) => "-",
        BinOp::Sub(_) => "+",
        BinOp::Mul(_) => "+",
        BinOp::Div(_) => "*",
        BinOp::Rem(_) => "/",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::BitAnd(_) => "|",
        BinOp::BitXor(_) => "|",
        BinOp::Shl(_) => ">>",
        BinOp::Shr(_) => "<<",
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::BitAndAssign(_) => "|=",
        BinOp::BitOrAssign(_) => "&=",
        BinOp::ShlAssign(_) => ">>=",
        BinOp::ShrAssign(_) => "<<=",
        // Of `|`, each bit is left out.
        _ => return None,
    })
}

/// The last name of a type.
fn name_of(own: &Type) -> String {
    match own {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
    .map_or_else(String::new, |segment| segment.ident.to_string())
}

/// Returns the statements by which a function can return at once instead.
fn results(signature: &Signature) -> &'static [&'static str] {
    let own = match &signature.output {
        ReturnType::Default => return &["return;"],
        ReturnType::Type(_, own) => own,
    };
    match name_of(own).as_str() {
        "bool" => &["return true;", "return false;"],
        "Option" => &["return None;"],
        _ => &[],
    }
}

/// Whether an expression does something where it stands, and could be forgotten.
fn acts(expression: &Expr) -> bool {
    match expression {
        Expr::Assign(_)
        | Expr::Call(_)
        | Expr::MethodCall(_)
        | Expr::Macro(_)
        | Expr::Return(_)
        | Expr::Break(_)
        | Expr::Continue(_) => true,
        Expr::Binary(binary) => is_assignment(&binary.op),
        Expr::Try(inner) => acts(&inner.expr),
        _ => false,
    }
}

fn is_assignment(operator: &BinOp) -> bool {
    other(operator).is_some_and(|other| other.len() > 1 && other.ends_with('='))
        && !matches!(
            operator,
            BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Gt(_)
        )
}

impl Maker<'_> {
    fn add(&mut self, kind: Kind, range: Range<usize>, now: impl Into<String>) {
        let place = self.places.join("::");
        self.found.add(kind, &place, range, now.into());
    }

    fn text(&self, range: Range<usize>) -> &str {
        self.found.text().get(range).unwrap_or_default()
    }

    fn within(&mut self, name: String, act: impl FnOnce(&mut Self)) {
        self.places.push(name);
        act(self);
        self.places.pop();
    }

    /// Negates each part of a condition; a comparison or a truth value, which is changed as such already, is left out.
    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::Binary(ExprBinary {
                left,
                op: BinOp::And(_) | BinOp::Or(_),
                right,
                ..
            }) => {
                self.condition(left);
                self.condition(right);
            }
            Expr::Paren(inner) => self.condition(&inner.expr),
            Expr::Let(_) | Expr::Lit(_) | Expr::Unary(_) => {}
            Expr::Binary(binary) if matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)) => {}
            Expr::MethodCall(call)
                if METHODS
                    .iter()
                    .any(|(a, b)| call.method == a || call.method == b) => {}
            _ => {
                let range = range(condition.span());
                let now = format!("!({})", self.text(range.clone()));
                self.add(Kind::Condition, range, flat(&now));
            }
        }
    }

    /// The blocks of an expression that has no value.
    fn no_value(&mut self, expression: &Expr) {
        match expression {
            Expr::If(branch) => {
                self.unit(&branch.then_branch);
                if let Some((_, behind)) = &branch.else_branch {
                    self.no_value(behind);
                }
            }
            Expr::Match(choice) => {
                for arm in &choice.arms {
                    self.no_value(&arm.body);
                    if acts(&arm.body) {
                        let range = range(arm.body.span());
                        self.add(Kind::Statement, range, "{}");
                    }
                }
            }
            Expr::Block(block) => self.unit(&block.block),
            Expr::Unsafe(block) => self.unit(&block.block),
            Expr::While(each) => self.unit(&each.body),
            Expr::ForLoop(each) => self.unit(&each.body),
            Expr::Loop(each) => self.unit(&each.body),
            _ => {}
        }
    }

    fn unit(&mut self, block: &Block) {
        self.units.insert(range(block.span()).start);
    }

    fn function(&mut self, signature: &Signature, block: &Block) {
        if matches!(signature.output, ReturnType::Default) {
            self.unit(block);
        }
        let results = results(signature);
        let alone = matches!(&block.stmts[..], [] | [Stmt::Expr(..) | Stmt::Macro(_)]);
        if !(alone && results == ["return;"]) {
            let at = range(block.brace_token.span.open()).end;
            for result in results {
                self.add(Kind::Return, at..at, *result);
            }
        }
    }

    /// Leaves out each line of a template of `asm!` that has several, one in each mutant.
    fn template(&mut self, body: &Macro) {
        let tokens: Vec<_> = body.tokens.clone().into_iter().collect();
        let parts = tokens
            .split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','));
        let lines = parts.map_while(|part| match part {
            [TokenTree::Literal(line)] if line.to_string().starts_with('"') => Some(line.span()),
            _ => None,
        });
        let lines: Vec<_> = lines.collect();
        if lines.len() > 1 {
            for line in lines {
                self.add(Kind::Instruction, range(line), "\"\"");
            }
        }
    }
}

/// Returns a text in one line.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<'ast> Visit<'ast> for Maker<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_for_tests) {
            return;
        }
        match item {
            Item::Fn(function) => {
                let name = function.sig.ident.to_string();
                self.within(name, |maker| {
                    maker.function(&function.sig, &function.block);
                    maker.visit_block(&function.block);
                });
            }
            Item::Macro(_) => {}
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        // Texts for people.
        let of = item.trait_.as_ref();
        let name = of.and_then(|(path, _)| path.segments.last());
        if name.is_some_and(|name| matches!(name.ident.to_string().as_str(), "Debug" | "Display")) {
            return;
        }
        let name = name_of(&item.self_ty);
        self.within(name, |maker| visit::visit_item_impl(maker, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if item.attrs.iter().any(is_for_tests) {
            return;
        }
        self.within(item.sig.ident.to_string(), |maker| {
            maker.function(&item.sig, &item.block);
            maker.visit_block(&item.block);
        });
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.within(item.ident.to_string(), |maker| {
            visit::visit_item_mod(maker, item);
        });
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        // `const _` holds something against something.
        if item.ident != "_" {
            self.within(item.ident.to_string(), |maker| maker.visit_expr(&item.expr));
        }
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.within(item.ident.to_string(), |maker| maker.visit_expr(&item.expr));
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.within(item.ident.to_string(), |maker| maker.visit_expr(&item.expr));
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast AngleBracketedGenericArguments) {
    }

    fn visit_block(&mut self, block: &'ast Block) {
        let unit = self.units.contains(&range(block.span()).start);
        let last = block.stmts.len().saturating_sub(1);
        for (index, statement) in block.stmts.iter().enumerate() {
            let valueless = unit || index < last;
            match statement {
                Stmt::Expr(expression, semicolon) => {
                    if semicolon.is_some() || valueless {
                        self.no_value(expression);
                    }
                    // With nothing but one statement inside, that is left out instead.
                    let whole = match expression {
                        Expr::If(branch) => {
                            branch.else_branch.is_none() && branch.then_branch.stmts.len() > 1
                        }
                        _ => acts(expression),
                    };
                    if whole && (semicolon.is_some() || valueless) {
                        self.add(Kind::Statement, range(statement.span()), "");
                    }
                }
                Stmt::Macro(inner) => {
                    let name = inner.mac.path.segments.last();
                    let words =
                        name.is_some_and(|name| WORDS.iter().any(|word| name.ident == word));
                    if !words && (inner.semi_token.is_some() || valueless) {
                        self.add(Kind::Statement, range(statement.span()), "");
                    }
                }
                Stmt::Local(Local {
                    pat: Pat::Wild(_), ..
                }) => self.add(Kind::Statement, range(statement.span()), ""),
                Stmt::Local(_) | Stmt::Item(_) => {}
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        self.condition(&branch.cond);
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, each: &'ast ExprWhile) {
        self.condition(&each.cond);
        self.unit(&each.body);
        visit::visit_expr_while(self, each);
    }

    fn visit_pat_guard(&mut self, pattern: &'ast PatGuard) {
        self.condition(&pattern.guard);
        visit::visit_pat_guard(self, pattern);
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        if let Some(now) = other(&binary.op) {
            self.add(Kind::Operator, range(binary.op.span()), now);
        }
        if matches!(binary.op, BinOp::BitOr(_)) {
            for side in [&binary.left, &binary.right] {
                let inner =
                    matches!(&**side, Expr::Binary(inner) if matches!(inner.op, BinOp::BitOr(_)));
                if !inner {
                    self.add(Kind::Bit, range(side.span()), "0");
                }
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        if let UnOp::Not(not) = &unary.op {
            self.add(Kind::Operator, range(not.span()), "");
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        for (one, two) in METHODS {
            let now = match name {
                _ if name == one => two,
                _ if name == two => one,
                _ => continue,
            };
            self.add(Kind::Operator, range(call.method.span()), now);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast ExprRepeat) {
        // Its length is a part of its type.
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_lit(&mut self, literal: &'ast ExprLit) {
        let range = range(literal.span());
        match &literal.lit {
            Lit::Bool(value) => self.add(Kind::Constant, range, (!value.value).to_string()),
            Lit::Int(number) => {
                let Ok(value) = number.base10_parse::<u128>() else {
                    return;
                };
                let (value, suffix) = (value.wrapping_add(1), number.suffix());
                let now = match self.text(range.clone()).get(..2) {
                    Some("0x") => format!("{value:#x}{suffix}"),
                    Some("0b") => format!("{value:#b}{suffix}"),
                    _ => format!("{value}{suffix}"),
                };
                self.add(Kind::Constant, range, now);
            }
            _ => {}
        }
    }

    fn visit_macro(&mut self, body: &'ast Macro) {
        let name = body.path.segments.last();
        let name = name.map_or_else(String::new, |name| name.ident.to_string());
        if name == "asm" {
            return self.template(body);
        }
        if WORDS.contains(&name.as_str()) {
            return;
        }
        let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
        if let Ok(arguments) = syn::parse::Parser::parse2(parser, body.tokens.clone()) {
            for argument in &arguments {
                <Self as Visit<'_>>::visit_expr(self, argument);
            }
        }
    }
}

#[cfg(test)]
#[path = "rust_tests.rs"]
mod tests;
