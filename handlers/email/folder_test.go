package email

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// shop is a folder of two mails that share a layout.
func shop() fstest.MapFS {
	folder := fstest.MapFS{}
	for name, text := range map[string]string{
		"base.html": `<html><title>{{ block "title" . }}Shop{{ end }}</title><body>{{ template "content" . }}{{ template "parts/footer" . }}</body></html>`,
		"base.txt":  "{{ template \"content\" . }}\n-- \n{{ template \"parts/footer\" . }}",
		"order/placed.html": `{{ define "title" }}Order{{ end }}<p title="{{ .Payload.name }}">Dear {{ .Payload.name }},</p>` +
			`{{ range .Payload.items }}{{ template "parts/item" . }}{{ end }}`,
		"order/placed.txt":        "{{ define \"subject\" }}Order of {{ .Payload.name }} & co{{ end }}Dear {{ .Payload.name }},{{ range .Payload.items }} {{ template \"parts/item\" . }}{{ end }}",
		"order/sent.html":         `{{ define "subject" }}Sent to {{ .Payload.name }} & co{{ end }}<p>On its way.</p>`,
		"parts/footer.html":       `<i>Shop &amp; Sons</i>`,
		"parts/footer.txt":        `Shop & Sons`,
		"parts/item.html":         `<b>{{ .name }}</b>`,
		"parts/item.txt":          `* {{ .name }}`,
		"logo.png":                "\x89PNG {{",
		".git/broken.html":        "{{ if",
		"..2026_12_01/broken.txt": "{{ if",
	} {
		folder[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return folder
}

const buyer = `{"email": "ann@example.com", "name": "Ann <b>", "items": [{"name": "tea & cup"}], "total": 123450, "at": "2026-03-01T10:00:00Z", "locale": "%s"}`

// placed is the configuration of the mail for an order.
func placed(s *smtpsink.Sink, folder fstest.MapFS) Config {
	c := config(s)
	c.Subject = ""
	c.TemplatesFS = folder
	c.Text = "order/placed.txt"
	c.HTML = "order/placed.html"
	c.Layout = List{"base.html", "base.txt"}
	return c
}

func TestTemplatesInFiles(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := placed(s, shop())
	_, p := deliverOne(t, deliverytest.Open(t, New, cfg), s, event(fmt.Sprintf(buyer, "")))
	if want := `Order of Ann <b> & co`; p.Subject != want {
		t.Errorf("the subject is %q, want %q", p.Subject, want)
	}
	if want := "Dear Ann <b>, * tea & cup\n-- \nShop & Sons"; p.Text != want {
		t.Errorf("the text is %q, want %q", p.Text, want)
	}
	if want := `<html><title>Order</title><body><p title="Ann &lt;b&gt;">Dear Ann &lt;b&gt;,</p><b>tea &amp; cup</b><i>Shop &amp; Sons</i></body></html>`; p.HTML != want {
		t.Errorf("the HTML is %q, want %q", p.HTML, want)
	}

	// A mail of HTML alone, with the same layout and its subject in the HTML file, which is no HTML.
	cfg.Text = ""
	cfg.HTML = "order/sent.html"
	cfg.Layout = List{"base.html"}
	_, p = deliverOne(t, deliverytest.Open(t, New, cfg), s, event(fmt.Sprintf(buyer, "")))
	if p.Subject != "Sent to Ann <b> & co" || p.HTML != `<html><title>Shop</title><body><p>On its way.</p><i>Shop &amp; Sons</i></body></html>` {
		t.Errorf("got %q, %q", p.Subject, p.HTML)
	}

	// Without a layout, with a subject of the configuration that calls the one of the file.
	cfg.Layout = nil
	cfg.Subject = `[{{ .Event.ID }}] {{ template "subject" . }}`
	_, p = deliverOne(t, deliverytest.Open(t, New, cfg), s, event(fmt.Sprintf(buyer, "")))
	if p.Subject != "[42] Sent to Ann <b> & co" || p.HTML != `<p>On its way.</p>` {
		t.Errorf("got %q, %q", p.Subject, p.HTML)
	}
}

// TestFolderMistakes: all mistakes of all files are reported at once, each with the file, the line and the cure.
func TestFolderMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files  map[string]string
		change func(*Config)
		want   []string
	}{
		"syntax, in two files, and in one of another mail": {
			files: map[string]string{"order/placed.html": "a\n{{ if }}", "parts/footer.txt": "\n\n{{ nope }}", "other.html": "{{ .Payload.x"},
			want: []string{
				`templates: template "order/placed.html", line 2: missing value for if`,
				`templates: template "parts/footer.txt", line 3: function "nope" not defined: use one of`,
				`templates: template "other.html", line 1: unclosed action`,
			},
		},
		"unknown partials": {
			files: map[string]string{"parts/footer.html": "\n{{ template \"parts/address\" . }}", "other.txt": "{{ template \"nothing\" . }}"},
			want: []string{
				`templates: template "parts/footer.html", line 2: there is no template "parts/address": call a file of templates by its name without the ending`,
				`templates: template "other.txt", line 1: there is no template "nothing": call a file`,
			},
		},
		"a partial of the other kind": {
			files: map[string]string{"parts/only.txt": "x", "order/sent.html": `{{ define "subject" }}s{{ end }}{{ template "parts/only" . }}`},
			want:  []string{`templates: template "order/sent.html", line 1: there is no template "parts/only"`},
		},
		"a circle": {
			files: map[string]string{"parts/footer.html": "\n{{ template \"parts/item\" . }}", "parts/item.html": `{{ template "parts/footer" . }}`},
			want:  []string{`templates: template "parts/footer.html", line 2: "parts/item" calls itself: use {{range}} for a list`},
		},
		"open quotes": {
			files: map[string]string{"order/placed.html": "\n<a title='{{ .Payload.name }}>", "other.html": "<a title='{{ .Payload.name }}>"},
			want: []string{
				`templates: template "order/placed.html", line 1: ends in a non-text context: close the tag, quote or comment that is open`,
				`templates: template "other.html", line 1: ends in a non-text context: close`,
			},
		},
		"a field that no event has": {
			files: map[string]string{"order/placed.txt": "{{ define \"subject\" }}s{{ end }}\n{{ .Payloads.x }}"},
			want:  []string{`templates: template "order/placed.txt", line 2: there is no .Payloads`},
		},
		"no subject": {
			files: map[string]string{"order/placed.txt": "x"},
			want:  []string{`subject: template "subject", line 1: there is no template "subject": write {{ define "subject" }}...{{ end }} into order/placed.txt, or set subject`},
		},
		"a layout without a body": {
			files: map[string]string{"base.html": "x"},
			want:  []string{`layout: file base.html does not call the body: write {{ template "content" . }} into it`},
		},
		"two of a name": {
			files: map[string]string{"parts/item.html": `{{ define "parts/footer" }}x{{ end }}`, "parts/footer.txt": `{{ define "subject" }}x{{ end }}`},
			want: []string{
				`templates: template "parts/item.html": {{define "parts/footer"}} has the name of the file "parts/footer.html": rename one of them`,
				`templates: template "parts/footer.txt": "subject" is defined in "order/placed.txt" too: rename one of them`,
			},
		},
		"missing files": {
			change: func(c *Config) { c.Text, c.HTML, c.Layout = "order/placd.txt", "order/none.html", List{"layout.html"} },
			want: []string{
				"text: there is no file order/placd.txt in templates (TemplatesFS): the folder has base.txt, order/placed.txt, parts/footer.txt, parts/item.txt",
				"html: there is no file order/none.html",
				"layout: there is no file layout.html",
			},
		},
		"empty":         {files: map[string]string{"order/placed.txt": " \n"}, want: []string{"text: the file order/placed.txt is empty: write a template into it"}},
		"too long":      {files: map[string]string{"x.txt": strings.Repeat("x", 1<<20+1)}, want: []string{`templates: file "x.txt" has more than 1048576 bytes: shorten it`}},
		"no UTF-8":      {files: map[string]string{"x.txt": "gr\xfcn"}, want: []string{`templates: file "x.txt" is not UTF-8: save it as UTF-8`}},
		"two languages": {files: map[string]string{"a.de_AT.txt": "x", "a.de-AT.txt": "x"}, change: func(c *Config) { c.Language = "de" }, want: []string{`templates: files "a.de-AT.txt" and "a.de_AT.txt" are of one language: remove one of them`}},
		"languages alone": {
			files:  map[string]string{"a.de.txt": `{{ define "subject" }}s{{ end }}x`, "a.fr.txt": `{{ define "subject" }}s{{ end }}x`},
			change: func(c *Config) { c.Language, c.Text = "de", "a.txt" },
			want:   []string{"text: there is no file a.txt in templates (TemplatesFS): there are files of languages alone: add it for all other languages"},
		},
		"a mistake in a language": {
			files:  map[string]string{"order/placed.de.html": "{{ if", "parts/footer.de.txt": "{{ end }}", "order/placed.de.txt": "ohne Betreff"},
			change: func(c *Config) { c.Language = "de" },
			want: []string{
				`templates: template "order/placed.de.html", line 1: `, `templates: template "parts/footer.de.txt", line 1: unexpected {{end}}`,
				`subject: template "subject", line 1: there is no template "subject": write {{ define "subject" }}...{{ end }} into order/placed.de.txt`,
			},
		},
	} {
		folder := shop()
		for name, text := range c.files {
			folder[name] = &fstest.MapFile{Data: []byte(text)}
		}
		cfg := valid()
		cfg.Subject, cfg.Text, cfg.HTML, cfg.Layout, cfg.TemplatesFS = "", "order/placed.txt", "order/placed.html", List{"base.html", "base.txt"}, folder
		if c.change != nil {
			c.change(&cfg)
		}
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: Validate reads files: %v", name, err)
		}
		_, err := New(cfg)
		got := field.Split(err)
		for _, want := range c.want {
			if n := len(slices.DeleteFunc(slices.Clone(got), func(err error) bool { return !strings.Contains(err.Error(), want) })); n != 1 {
				t.Errorf("%s: %d times %s\nin %v", name, n, want, err)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %d mistakes, want %d:\n%v", name, len(got), len(c.want), err)
		}
	}
}

// TestFolderIsClosed: nothing outside of the folder is read, whatever its files are, and the search ends.
func TestFolderIsClosed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "secret.txt", []byte("swordfish"))
	cfg := valid()
	cfg.Templates, cfg.Text = "mail", "a.txt"
	open := func(t *testing.T) error {
		t.Helper()
		h, err := New(cfg, handlers.WithBaseDir(dir))
		if err == nil {
			err = h.Close()
		}
		return err
	}

	if err := open(t); err == nil || !strings.HasPrefix(err.Error(), "templates: cannot be read: ") {
		t.Errorf("without the folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "mail"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := open(t); err == nil || !strings.HasPrefix(err.Error(), "templates: the folder has no file that ends in .txt or .html: ") {
		t.Errorf("without files: %v", err)
	}

	// As Kubernetes mounts a folder: links inside of it, and the files themselves behind a name with a dot.
	if err := os.Mkdir(filepath.Join(dir, "mail", "..data"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "mail", "..data"), "a.txt", []byte("a"))
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, "mail", name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..data/a.txt", "a.txt")
	if err := open(t); err != nil {
		t.Errorf("with a link inside: %v", err)
	}

	for _, to := range []string{"../secret.txt", filepath.Join(dir, "secret.txt")} {
		link(to, "b.txt")
		if err := open(t); err == nil || !strings.Contains(err.Error(), "b.txt: path escapes from parent") {
			t.Errorf("with a link to %s: %v", to, err)
		}
		if err := os.Remove(filepath.Join(dir, "mail", "b.txt")); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Mkdir(filepath.Join(dir, "mail", "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("c", "b.html")
	if err := open(t); err == nil || !strings.Contains(err.Error(), `"b.html" is not a file: remove it, or rename it`) {
		t.Errorf("with a link to a folder: %v", err)
	}
}

func TestFolderIsBounded(t *testing.T) {
	t.Parallel()
	for want, fill := range map[string]func(fstest.MapFS){
		"templates: the folder has more than 1000 templates": func(f fstest.MapFS) {
			for i := range maxTemplateFiles {
				f[fmt.Sprintf("x/%d.txt", i)] = &fstest.MapFile{Data: []byte("x")}
			}
		},
		"templates: the folder has more than 10000 files": func(f fstest.MapFS) {
			for i := range maxFolderEntries {
				f[fmt.Sprintf("x/%d.png", i)] = &fstest.MapFile{Data: []byte("x")}
			}
		},
		"templates: the templates have more than 10485760 bytes together": func(f fstest.MapFS) {
			for i := range 11 {
				f[fmt.Sprintf("x/%d.txt", i)] = &fstest.MapFile{Data: []byte(strings.Repeat("x", 1<<20))}
			}
		},
	} {
		folder := shop()
		fill(folder)
		cfg := valid()
		cfg.TemplatesFS, cfg.Text = folder, "order/placed.txt"
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestErrorOfAFile: the error about an event names the file and the line, not the layout that calls it.
func TestErrorOfAFile(t *testing.T) {
	t.Parallel()
	cfg := valid()
	cfg.TemplatesFS, cfg.Text, cfg.HTML, cfg.Layout = shop(), "", "order/placed.html", List{"base.html"}
	h := deliverytest.Open(t, New, cfg)
	_, err := h.Preview(event(`{"name": "Ann", "items": [{}]}`))
	if err == nil || !strings.Contains(err.Error(), `template "parts/item.html", line 1, at {{ .name }}: the event has no such field`) {
		t.Errorf("got %v", err)
	}
}
