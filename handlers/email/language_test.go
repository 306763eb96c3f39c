package email

import (
	"fmt"
	"io/fs"
	"maps"
	"mime"
	"net/mail"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

const localeOf = `{{ get .Payload "locale" | default "en" }}`

// abroad is the shop with mails in German and French, and a footer in German and Austrian German.
func abroad() fstest.MapFS {
	folder := shop()
	const values = `{{ money .Payload.total "EUR" }}; {{ number 1234.5 }}; {{ date "long" .Payload.at }}; {{ date "2 January 2006" .Payload.at }}`
	for name, text := range map[string]string{
		"order/placed.txt":      `{{ define "subject" }}Your order of {{ date "long" .Payload.at }}{{ end }}Dear: ` + values,
		"order/placed.de.txt":   `{{ define "subject" }}Ihre Bestellung vom {{ date "long" .Payload.at }}{{ end }}Guten Tag: ` + values,
		"order/placed.fr.txt":   `{{ define "subject" }}Votre commande du {{ date "long" .Payload.at }}{{ end }}Bonjour : ` + values,
		"order/placed.html":     `<p>Dear</p>`,
		"order/placed.de.html":  `<p>Guten Tag</p>`,
		"order/placed.fr.html":  `<p>Bonjour</p>`,
		"order/placed.it.html":  `<p>Buongiorno</p>`,                                   // and no text
		"order/placed.es.txt":   `{{ define "subject" }}Su pedido{{ end }}Buenos días`, // and no HTML
		"parts/footer.de.txt":   `Laden`,
		"parts/footer.de.html":  `<i>Laden</i>`,
		"parts/footer.ja.html":  `<i>店</i>`, // and no body
		"order/sent.v2-old.txt": `a name with a dot`,
	} {
		folder[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return folder
}

func TestLanguages(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := placed(s, abroad())
	cfg.Language = localeOf
	h := deliverytest.Open(t, New, cfg)

	type shown struct{ subject, text, html string }
	english := func(date, short string) shown {
		return shown{"Your order of " + date, "Dear: €1,234.50; 1,234.5; " + date + "; " + short + "\n-- \nShop & Sons", "<p>Dear</p></body><i>Shop &amp; Sons</i>"}
	}
	us := english("March 1, 2026", "1 March 2026")
	german := shown{"Ihre Bestellung vom 1. März 2026", "Guten Tag: 1.234,50 €; 1.234,5; 1. März 2026; 1 März 2026\n-- \nLaden", "<p>Guten Tag</p></body><i>Laden</i>"}
	austrian := german
	austrian.text = "Guten Tag: € 1.234,50; 1 234,5; 1. März 2026; 1 März 2026\n-- \nLaden"
	for locale, want := range map[string]shown{
		"en": us, "": us, "en-US": us,
		"en-GB": english("1 March 2026", "1 March 2026"),
		"de":    german, "de-DE": german, "DE_de": german, " de ": german, "de-u-nu-thai": german, "de-1996": german,
		"de-AT": austrian, "de_AT": austrian,
		"fr-CA": {"Votre commande du 1 mars 2026", "Bonjour : 1 234,50 €; 1 234,5; 1 mars 2026; 1 mars 2026\n-- \nShop & Sons", "<p>Bonjour</p></body><i>Shop &amp; Sons</i>"},

		// Languages without a text, or without anything, and what is no language.
		"it": us, "es": us, "ja": us, "pl": us, "x-klingon": us, "und": us, "no language": us, "de AT": us, "../../order/sent": us, "de/../fr": us, "de.html": us,
		"de\x00": us, strings.Repeat("de-", 30): us, "{{ .Payload }}": us,
	} {
		_, p := deliverOne(t, h, s, event(fmt.Sprintf(buyer, strings.ReplaceAll(locale, "\x00", `\u0000`))))
		html := strings.NewReplacer(`<html><title>Shop</title><body>`, "", `</body></html>`, "").Replace(p.HTML)
		plain := strings.NewReplacer("\u00a0", " ", "\u202f", " ")
		got := shown{plain.Replace(p.Subject), plain.Replace(p.Text), html}
		want.html = strings.ReplaceAll(want.html, "</body>", "")
		if got != want {
			t.Errorf("%q:\n got %q\nwant %q", locale, got, want)
		}
	}

	// A language that is no text is malformed, too; a template that fails is a mistake like any other.
	for payload, subject := range map[string]string{`["de"]`: us.subject, `{"a": "de"}`: us.subject, `7`: us.subject, `null`: us.subject, `true`: us.subject} {
		_, p := deliverOne(t, h, s, event(strings.ReplaceAll(fmt.Sprintf(buyer, "x"), `"x"`, payload)))
		if p.Subject != subject {
			t.Errorf("%s: %q", payload, p.Subject)
		}
	}
	cfg.Language = "{{ .Payload.nothing }}"
	_, err := deliverytest.Open(t, New, cfg).Preview(event(fmt.Sprintf(buyer, "de")))
	if err == nil || !strings.Contains(err.Error(), `template "language", line 1, at {{ .Payload.nothing }}: the event has no such field`) {
		t.Errorf("got %v", err)
	}
}

// TestDefaultLanguage: files without a language are in the default language, which may have files with it in place of them.
func TestDefaultLanguage(t *testing.T) {
	t.Parallel()
	folder := fstest.MapFS{}
	for name, text := range map[string]string{"a.txt": "ohne", "a.fr.txt": "français", "b.de.txt": "deutsch", "b.fr.txt": "français"} {
		folder[name] = &fstest.MapFile{Data: []byte(text + ` {{ date "long" .Event.CreatedAt }}`)}
	}
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.TemplatesFS, cfg.Language = folder, localeOf
	for file, want := range map[string]map[string]string{
		"a.txt": {"de-AT": "ohne 21. Jänner 2026", "en": "ohne 21. Jänner 2026", "de": "ohne 21. Jänner 2026", "fr": "français 21 janvier 2026"},
		"b.txt": {"de-AT": "deutsch 21. Jänner 2026", "de": "deutsch 21. Januar 2026"},
	} {
		cfg.Text = file
		cfg.DefaultLanguage = "de-AT"
		if file == "b.txt" {
			cfg.DefaultLanguage = "de"
		}
		h := deliverytest.Open(t, New, cfg)
		for locale, text := range want {
			e := event(fmt.Sprintf(buyer, locale))
			e.CreatedAt = e.CreatedAt.AddDate(0, 1-int(e.CreatedAt.Month()), 21-e.CreatedAt.Day())
			if _, p := deliverOne(t, h, s, e); p.Text != text {
				t.Errorf("%s in %s: %q, want %q", file, locale, p.Text, text)
			}
		}
	}
}

// TestInlineLanguage: without files, the language is only that of money, number and date.
func TestInlineLanguage(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.Subject = `{{ money .Payload.total "EUR" }}`
	cfg.Text = `{{ number 1234.5 }} {{ date "2 January" .Payload.at }}`
	cfg.HTML = `<p>{{ number 1234.5 }}`
	cfg.Headers = map[string]string{"X-Date": `{{ date "January" .Payload.at }}`}
	for language, want := range map[string]string{
		"":       "1234.50 EUR|1234.5 1 March|<p>1234.5|March",
		"de":     "1.234,50 €|1.234,5 1 März|<p>1.234,5|März",
		localeOf: "1 234,50 €|1 234,5 1 mars|<p>1 234,5|mars",
		"nope!":  "€1,234.50|1,234.5 1 March|<p>1,234.5|March",
	} {
		cfg.Language = language
		_, p := deliverOne(t, deliverytest.Open(t, New, cfg), s, event(fmt.Sprintf(buyer, "fr")))
		header, err := new(mime.WordDecoder).DecodeHeader(p.Header.Get("X-Date"))
		got := strings.NewReplacer("\u00a0", " ", "\u202f", " ").Replace(strings.Join([]string{p.Subject, p.Text, p.HTML, header}, "|"))
		if got = strings.ReplaceAll(got, "&nbsp;", " "); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", language, got, err, want)
		}
	}
}

// TestLanguagesAtOnce: mails of several languages are written at the same time, by the same templates.
func TestLanguagesAtOnce(t *testing.T) {
	t.Parallel()
	cfg := valid()
	cfg.TemplatesFS, cfg.Subject, cfg.Text, cfg.HTML, cfg.Language = abroad(), "{{ number 1234.5 }}", "order/placed.txt", "order/placed.html", localeOf
	h := deliverytest.Open(t, New, cfg)
	want := map[string]string{"en": "1,234.5", "de": "1.234,5", "pl": "1,234.5", "fr": "1 234,5", "de-CH": "1’234.5"}
	done := make(chan string)
	for locale, number := range want {
		go func() {
			for range 200 {
				text, err := h.Preview(event(fmt.Sprintf(buyer, locale)))
				if subject := subjectOf(text); err != nil || subject != number {
					done <- fmt.Sprintf("%s: %q, %v", locale, subject, err)
					return
				}
			}
			done <- ""
		}()
	}
	for range want {
		if wrong := testenv.Receive(t, patience, "the mails of a language", done); wrong != "" {
			t.Error(wrong)
		}
	}
}

// subjectOf returns the subject of a mail.
func subjectOf(text string) string {
	m, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		return err.Error()
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
	if err != nil {
		return err.Error()
	}
	return subject
}

// TestUntranslated: a warning names each file that lacks a language which others have.
func TestUntranslated(t *testing.T) {
	t.Parallel()
	cfg := valid()
	cfg.HELO = "relay.example.com"
	cfg.TemplatesFS, cfg.Subject, cfg.Text, cfg.HTML, cfg.Layout = abroad(), "", "order/placed.txt", "order/placed.html", List{"base.html", "base.txt"}
	if err := cfg.Warnings(); err != nil {
		t.Errorf("without languages: %v", err)
	}
	cfg.Language = localeOf
	want := []string{
		"templates: order/placed.txt is not translated into it, ja, as other files of the folder are: the default file takes its place",
		"templates: order/placed.html is not translated into es, ja, as",
		"templates: parts/footer.txt is not translated into es, fr, it, ja, as",
		"templates: parts/footer.html is not translated into es, fr, it, as",
	}
	got := field.Split(cfg.Warnings())
	for _, text := range want {
		if !slices.ContainsFunc(got, func(err error) bool { return strings.HasPrefix(err.Error(), text) }) {
			t.Errorf("%s\nis not in %v", text, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d warnings, want %d: %v", len(got), len(want), got)
	}
}

// FuzzLanguage: whatever an event has as its language chooses a page that the folder has, and a language that is written as
// one: never a file, and never an error.
func FuzzLanguage(f *testing.F) {
	for _, text := range []string{"", "de", "de-AT", "de_AT", "zh-Hant-TW", "../de", "de/../../x", "de.html", "x-a", "i-klingon", "en-u-nu-thai", "a", "de-de-de", "\x00", "art-lojban", "und-DE"} {
		f.Add(text)
	}
	folder := abroad()
	cfg := valid()
	cfg.TemplatesFS, cfg.Subject, cfg.Text, cfg.HTML, cfg.Language = folder, "{{ number 1234.5 }}", "order/placed.txt", "order/placed.html", localeOf
	h, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	pages := &h.tmpl.pages
	all := append(slices.Collect(maps.Values(pages.files)), pages.standard)

	f.Fuzz(func(t *testing.T, text string) {
		tag, chosen := pages.of(text)
		if !slices.Contains(all, chosen) {
			t.Fatalf("%q chooses no page of the folder", text)
		}
		if again, ok := parseLanguage(tag.String()); !ok || again != tag {
			t.Errorf("%q is %q, which is read as %q", text, tag, again)
		}
		if number, err := pages.locales.Of(tag).Number("1234.5"); err != nil || number == "" {
			t.Errorf("%q: %q, %v", text, number, err)
		}

		// As the name of a file it is a language, or a part of the name.
		files := &folderOf(pages, "a."+text+".txt").files
		for name, languages := range *files {
			for lang, file := range languages {
				if name.name+name.ending != file && name.name+path.Ext(strings.TrimSuffix(file, name.ending))+name.ending != file {
					t.Errorf("%q is %q in %q", file, name, lang)
				}
			}
		}
	})
}

// folderOf returns a folder of one file.
func folderOf(p *pages, name string) *folder {
	f := &folder{texts: make(map[string]string), files: make(map[fileName]map[string]string), pages: p}
	if fs.ValidPath(name) {
		f.texts[name] = "x"
	}
	_ = f.index() // of one file
	return f
}
