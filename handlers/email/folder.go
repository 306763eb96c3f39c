package email

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

const (
	// maxTemplateFiles and maxTemplateBytes bound the templates of a folder. A shop has some dozens, of some KiB each.
	maxTemplateFiles = 1000
	maxTemplateBytes = 10 << 20
	// maxFolderEntries bounds the search for templates, so that a folder such as / is an error.
	maxFolderEntries = 10_000

	// contentName is what a layout calls the body.
	contentName = "content"
	// subjectName is what a body defines the subject as.
	subjectName = "subject"
)

// kindOf has the kind of templates by the ending of their files.
func kindOf(ending string) (tmpl.Kind, bool) {
	switch ending {
	case ".txt":
		return tmpl.Text, true
	case ".html":
		return tmpl.HTML, true
	default:
		return 0, false
	}
}

// folder has the texts of the templates in files.
type folder struct {
	texts map[string]string // by path
	files map[fileName]map[string]string
	pages *pages
}

// fileName is the name by which templates call a file: order/placed.de.html is order/placed. The languages of a name are in
// the map behind it, "" for none, with the paths.
type fileName struct{ name, ending string }

func (c Config) hasFolder() bool { return c.Templates != "" || c.TemplatesFS != nil }

// place names the folder in errors.
func (c Config) place() string { return cmp.Or(c.Templates, "TemplatesFS") }

// files checks the settings that name files of the folder.
func (c Config) files() error {
	if !c.hasFolder() {
		if len(c.Layout) > 0 {
			return field.Errorf("layout", "names files of a folder: set templates to the folder")
		}
		return nil
	}

	var errs []error
	if c.Templates != "" && c.TemplatesFS != nil {
		errs = append(errs, field.Errorf("templates", "has no effect with TemplatesFS: take one of them out"))
	}

	errs = append(errs, c.checkFile("text", c.Text, ".txt"), c.checkFile("html", c.HTML, ".html"))

	seen := make(map[string]bool)
	for _, name := range c.Layout {
		ending := path.Ext(name)
		_, isTemplate := kindOf(ending)
		body := c.HTML
		if ending == ".txt" {
			body = c.Text
		}

		switch {
		case !isTemplate || !fs.ValidPath(name):
			errs = append(errs, c.checkFile("layout", name, ".html"))
		case seen[ending]:
			errs = append(errs, field.Errorf("layout", "has two files that end in %s: take one of them out", ending))
		case body == "":
			errs = append(errs, field.Errorf("layout", "has a file that ends in %s, and the mail has no such body: take it out", ending))
		}
		seen[ending] = true
	}

	return errors.Join(errs...)
}

// checkFile checks the name of a file. Its error does not repeat the text, which may be a whole template.
func (c Config) checkFile(setting, name, ending string) error {
	isName := fs.ValidPath(name) && path.Ext(name) == ending
	if name == "" || isName {
		return nil
	}
	return field.Errorf(setting, "is not the name of a file in templates (%s) that ends in %s: write one such as order/placed%s, "+
		"or take templates out to write templates into the configuration", c.place(), ending, ending)
}

// readFiles adds the templates in files.
func (p *pages) readFiles(c Config, baseDir string) error {
	if !c.hasFolder() || c.files() != nil {
		return nil //nolint:nilerr // Validate reports it
	}

	f, err := p.open(c, baseDir)
	if err != nil {
		return field.Errorf("templates", "%w", err)
	}
	return p.add(f, c)
}

// open reads all templates of the folder. Files outside of it cannot be reached, also not through symbolic links.
func (p *pages) open(c Config, baseDir string) (*folder, error) {
	from := c.TemplatesFS
	if from == nil {
		dir := c.Templates
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(baseDir, dir)
		}

		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, fmt.Errorf("cannot be read: %w", err)
		}
		defer func() { _ = root.Close() }() // nothing was written
		from = root.FS()
	}

	f := &folder{texts: make(map[string]string), files: make(map[fileName]map[string]string), pages: p}
	if err := f.read(from); err != nil {
		return nil, err
	}
	if len(f.texts) == 0 {
		return nil, errors.New("the folder has no file that ends in .txt or .html: write a template into one")
	}
	return f, f.index()
}

// read reads the files. It leaves out those whose name begins with a dot: mounted folders of Kubernetes keep each file there a
// second time.
func (f *folder) read(from fs.FS) error {
	entries := 0
	left := maxTemplateBytes

	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		entries++
		if entries > maxFolderEntries {
			return fmt.Errorf("the folder has more than %d files: name a folder of templates alone", maxFolderEntries)
		}

		if name != "." && strings.HasPrefix(path.Base(name), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if _, isTemplate := kindOf(path.Ext(name)); !isTemplate || d.IsDir() {
			return nil
		}

		if len(f.texts) == maxTemplateFiles {
			return fmt.Errorf("the folder has more than %d templates: name a folder of mails alone", maxTemplateFiles)
		}

		text, err := readFile(from, name, left)
		if err != nil {
			return err
		}
		left -= len(text)
		f.texts[name] = text
		return nil
	})
	if _, isPath := errors.AsType[*fs.PathError](err); isPath {
		return fmt.Errorf("cannot be read: %w", err)
	}
	return err
}

// readFile reads a template of at most left bytes.
func readFile(from fs.FS, name string, left int) (string, error) {
	info, err := fs.Stat(from, name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%q is not a file: remove it, or rename it", name)
	}

	file, err := from.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // nothing was written

	limit := min(left, tmpl.MaxOutput)
	data, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	switch {
	case err != nil:
		return "", err
	case len(data) > tmpl.MaxOutput:
		return "", fmt.Errorf("file %q has more than %d bytes: shorten it", name, tmpl.MaxOutput)
	case len(data) > limit:
		return "", fmt.Errorf("the templates have more than %d bytes together: name a folder of mails alone", maxTemplateBytes)
	case !utf8.Valid(data):
		return "", fmt.Errorf("file %q is not UTF-8: save it as UTF-8", name)
	}
	return strings.TrimPrefix(string(data), "\ufeff"), nil
}

// index sorts the files by name and language.
func (f *folder) index() error {
	var errs []error
	for _, file := range slices.Sorted(maps.Keys(f.texts)) {
		name, lang := f.nameOf(file)
		if f.files[name] == nil {
			f.files[name] = make(map[string]string)
		}
		if other, ok := f.files[name][lang]; ok {
			errs = append(errs, fmt.Errorf("files %q and %q are of one language: remove one of them", other, file))
			continue
		}
		f.files[name][lang] = file
	}
	return errors.Join(errs...)
}

// nameOf splits the path of a file. Without the setting language no file has a language.
func (f *folder) nameOf(file string) (name fileName, lang string) {
	ending := path.Ext(file)
	stem := strings.TrimSuffix(file, ending)
	if f.pages.language == nil {
		return fileName{stem, ending}, ""
	}

	word := path.Ext(stem)
	tag, ok := parseLanguage(strings.TrimPrefix(word, "."))
	if !ok || path.Base(stem) == word {
		return fileName{stem, ending}, ""
	}
	return fileName{strings.TrimSuffix(stem, word), ending}, tag.String()
}

// variant returns the path of a file in a language, "" for the default, or in the first of its parents that the file has.
func (f *folder) variant(name fileName, lang string) (file string, ok bool) {
	all := f.files[name]
	words := make([]string, 0, 4)
	if tag, isTag := parseLanguage(lang); isTag {
		for t := tag; !t.IsRoot(); t = t.Parent() {
			words = append(words, t.String())
		}
	}
	words = append(words, "", f.pages.fallback.String())

	for _, word := range words {
		if file, ok := all[word]; ok {
			return file, true
		}
	}
	return "", false
}

// check parses every file alone, also those of other mails.
func (f *folder) check() error {
	var errs []error
	add := func(err error) { errs = append(errs, field.Errorf("templates", "%w", err)) }

	defined := map[fileName]bool{{contentName, ".txt"}: true, {contentName, ".html"}: true}
	called := make(map[fileName]bool)
	var unsure []tmpl.Call
	var broken []string // texts of files that cannot be parsed, and may define a name
	for _, file := range slices.Sorted(maps.Keys(f.texts)) {
		name, lang := f.nameOf(file)
		part := tmpl.Part{Name: name.name, Path: file, Text: f.texts[file], Inner: true}
		names, calls, err := f.set(name.ending, lang).Inspect(part)
		if err != nil {
			add(err)
			broken = append(broken, part.Text)
			continue
		}

		for _, other := range names {
			defined[fileName{other, name.ending}] = true
		}
		for _, call := range calls {
			called[fileName{call.Name, name.ending}] = true
			unsure = append(unsure, call)
		}
	}

	for _, call := range unsure {
		name := fileName{call.Name, path.Ext(call.Path)}
		isQuoted := func(text string) bool { return strings.Contains(text, strconv.Quote(call.Name)) }
		mayBeDefined := slices.ContainsFunc(broken, isQuoted)
		if !defined[name] && !mayBeDefined && f.files[name] == nil {
			add(f.set(name.ending, "").Unknown(call))
		}
	}

	for _, file := range slices.Sorted(maps.Keys(f.texts)) {
		name, lang := f.nameOf(file)
		if name.ending == ".html" && !called[name] {
			errs = append(errs, f.checkContext(name, lang))
		}
	}
	return errors.Join(errs...)
}

// checkContext checks the context of the values of an HTML file that no file calls. What other files decide, such as the
// blocks of its layout, is unknown here.
func (f *folder) checkContext(name fileName, lang string) error {
	content := tmpl.Part{Name: contentName, Path: contentName}
	_, err := f.set(name.ending, lang).Parse(f.part(name, lang, name.name), content)
	if bad, ok := errors.AsType[*tmpl.ContextError](err); ok {
		return field.Errorf("templates", "%w", bad)
	}
	return nil
}

// finder returns the function that finds the files which templates call.
func (f *folder) finder(ending, lang string) func(name string) (tmpl.Part, bool) {
	return func(name string) (tmpl.Part, bool) {
		file, ok := f.variant(fileName{name, ending}, lang)
		return tmpl.Part{Name: name, Path: file, Text: f.texts[file], Inner: true}, ok
	}
}

// body is a setting that names a file.
type body struct {
	setting string
	name    fileName
	layout  fileName // "" for none
}

// bodies are the bodies of a mail, and their layouts.
func (c Config) bodies() (text, html body) {
	split := func(file string) fileName {
		ending := path.Ext(file)
		return fileName{strings.TrimSuffix(file, ending), ending}
	}

	text = body{setting: "text", name: split(c.Text)}
	html = body{setting: "html", name: split(c.HTML)}
	for _, file := range c.Layout {
		if path.Ext(file) == ".txt" {
			text.layout = split(file)
		} else {
			html.layout = split(file)
		}
	}
	return text, html
}

// add parses the pages of the folder, and checks its other files. The error joins the mistakes of all files, each once.
func (p *pages) add(f *folder, c Config) error {
	if err := f.named(c); err != nil {
		return errors.Join(err, f.check())
	}

	b := &builder{folder: f, subject: c.Subject}
	b.text, b.html = c.bodies()

	p.standard = b.page("")
	p.files = make(map[string]page)
	for _, lang := range f.languagesOf(b.text, b.html) {
		p.files[lang] = b.page(lang)
	}

	if err := f.check(); err != nil {
		b.errs = append(b.errs, field.Split(err)...)
	}
	return distinct(b.errs)
}

// named checks that each file exists that a setting names.
func (f *folder) named(c Config) error {
	var errs []error
	check := func(setting, file string) {
		ending := path.Ext(file)
		name := fileName{strings.TrimSuffix(file, ending), ending}
		found, ok := f.variant(name, "")
		switch {
		case file == "":
		case !ok:
			errs = append(errs, field.Errorf(setting, "there is no file %s in templates (%s): %s", file, c.place(), f.advice(name)))
		case strings.TrimSpace(f.texts[found]) == "":
			errs = append(errs, field.Errorf(setting, "the file %s is empty: write a template into it", found))
		}
	}

	check("text", c.Text)
	check("html", c.HTML)
	for _, file := range c.Layout {
		check("layout", file)
	}
	return errors.Join(errs...)
}

// advice tells what to do about a file that is missing.
func (f *folder) advice(missing fileName) string {
	if len(f.files[missing]) > 0 {
		return "there are files of languages alone: add it for all other languages"
	}

	const most = 5
	var names []string
	for _, name := range slices.Sorted(maps.Keys(f.texts)) {
		if path.Ext(name) == missing.ending {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "the folder has none that ends in " + missing.ending
	}
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return "the folder has " + strings.Join(names, ", ")
}

// languagesOf returns the languages that all bodies have, so that no mail is written in two.
func (f *folder) languagesOf(bodies ...body) []string {
	var common map[string]string
	for _, b := range bodies {
		files, ok := f.files[b.name]
		if !ok {
			continue
		}
		if common == nil {
			common = maps.Clone(files)
		}
		maps.DeleteFunc(common, func(lang, _ string) bool { return files[lang] == "" })
	}

	delete(common, "")
	return slices.Sorted(maps.Keys(common))
}

// builder parses pages and collects their mistakes.
type builder struct {
	*folder

	subject    string
	text, html body
	errs       []error
}

// page parses the page of a language.
func (b *builder) page(lang string) page {
	return page{
		text:    b.parseBody(b.text, lang),
		html:    b.parseBody(b.html, lang),
		subject: b.parseSubject(lang), // last: a mistake of a file is one of the file first
	}
}

// set returns the templates of a kind that the folder has in a language.
func (f *folder) set(ending, lang string) tmpl.Set {
	kind, _ := kindOf(ending)
	return tmpl.Set{
		Kind: kind,
		Find: f.finder(ending, lang),
		Cure: "call a file of templates by its name without the ending, or what the same file or its layout defines",
	}
}

// part returns a file in a language, which templates call by another name.
func (f *folder) part(file fileName, lang, name string) tmpl.Part {
	found, _ := f.variant(file, lang)
	return tmpl.Part{Name: name, Path: found, Text: f.texts[found]}
}

func (b *builder) parseBody(of body, lang string) *tmpl.Template {
	if of.name.name == "" {
		return nil
	}

	set := b.set(of.name.ending, lang)
	first := b.part(of.name, lang, of.name.name)
	var further []tmpl.Part

	if of.layout.name != "" {
		layout := b.part(of.layout, lang, of.layout.name)
		further = append(further, b.part(of.name, lang, contentName))
		first = layout
	}

	t, err := set.Parse(first, further...)
	if _, isContext := errors.AsType[*tmpl.ContextError](err); isContext {
		alone := b.checkContext(of.name, lang) // a mistake of the body would be one of the layout
		err = cmp.Or(errors.Unwrap(alone), err)
	}
	b.fail(err)
	if err == nil && of.layout.name != "" && !t.Calls(contentName) {
		b.errs = append(b.errs, field.Errorf("layout", `file %s does not call the body: write {{ template "content" . }} into it`, first.Path))
	}
	return t
}

// parseSubject parses the subject. It can call templates that the text file defines, or the HTML file of a mail without
// text.
func (b *builder) parseSubject(lang string) *tmpl.Template {
	of := b.text
	if of.name.name == "" {
		of = b.html
	}
	body := b.part(of.name, lang, of.name.name)

	text := b.subject
	set := b.set(".txt", lang)
	if text == "" {
		text = `{{ template "` + subjectName + `" . }}`
		set.Cure = fmt.Sprintf(`write {{ define "subject" }}...{{ end }} into %s, or set subject`, body.Path)
	}

	t, err := set.Parse(tmpl.Part{Name: "setting subject", Path: "subject", Text: text}, body)
	for _, err := range field.Split(err) {
		b.errs = append(b.errs, field.Errorf("subject", "%w", err))
	}
	return t
}

// fail adds the mistakes of files.
func (b *builder) fail(err error) {
	for _, err := range field.Split(err) {
		b.errs = append(b.errs, field.Errorf("templates", "%w", err))
	}
}

// untranslated returns the files of a mail that lack a language which other files of the folder have: those whose text is
// then in the default language.
func untranslated(c Config, baseDir string) error {
	if c.Language == "" || !c.hasFolder() || c.files() != nil {
		return nil //nolint:nilerr // Validate reports it
	}

	var p parser
	all := p.pages(c)
	f, err := all.open(c, baseDir)
	if err != nil || f.named(c) != nil {
		return nil //nolint:nilerr // New reports it
	}

	languages := make(map[string]bool)
	for _, files := range f.files {
		for lang := range files {
			languages[lang] = true
		}
	}

	var errs []error
	for _, name := range f.filesOf(c) {
		var missing []string
		standard, _ := f.variant(name, "")
		for _, lang := range slices.Sorted(maps.Keys(languages)) {
			isDefault := lang == "" || lang == all.fallback.String()
			if file, _ := f.variant(name, lang); file == standard && !isDefault {
				missing = append(missing, lang)
			}
		}
		if len(missing) > 0 {
			errs = append(errs, field.Errorf("templates", "%s is not translated into %s, as other files of the folder are: "+
				"the default file takes its place", name.name+name.ending, strings.Join(missing, ", ")))
		}
	}
	return errors.Join(errs...)
}

// filesOf returns the files of a mail to translate: its bodies, and the layouts and parts that have a translation.
func (f *folder) filesOf(c Config) []fileName {
	text, html := c.bodies()
	bodies := []fileName{text.name, html.name}
	queue := []fileName{text.name, html.name, text.layout, html.layout}
	seen := make(map[fileName]bool)
	var names []fileName

	for ; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		if seen[name] || f.files[name] == nil {
			continue
		}
		seen[name] = true

		if len(f.files[name]) > 1 || slices.Contains(bodies, name) {
			names = append(names, name)
		}
		for lang, file := range f.files[name] {
			part := tmpl.Part{Name: name.name, Path: file, Text: f.texts[file], Inner: true}
			_, calls, _ := f.set(name.ending, lang).Inspect(part) // New reports the error
			for _, call := range calls {
				queue = append(queue, fileName{call.Name, name.ending})
			}
		}
	}
	return names
}

// distinct joins mistakes, each once: a file is part of several templates.
func distinct(errs []error) error {
	var all []error
	seen := make(map[string]bool)
	for _, err := range errs {
		_, text, _ := strings.Cut(err.Error(), ": ")
		if !seen[text] {
			seen[text] = true
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
