package email

import (
	"cmp"
	"strings"

	"golang.org/x/text/language"

	"github.com/notifyd/notifyd/handlers/internal/locale"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// defaultLanguage is the value of [Config.DefaultLanguage] if it is unset.
const defaultLanguage = "en"

// maxLanguage bounds the text of a language: a tag with all of its parts is far shorter.
const maxLanguage = 64

// page has the templates that the language of a mail decides about.
type page struct {
	subject, text, html *tmpl.Template // nil if there is none
}

// pages are the pages of a [Config] and the choice between them.
type pages struct {
	language *tmpl.Template // nil without languages
	fallback language.Tag
	locales  *locale.Locales

	standard page            // inline, or of the files without a language
	files    map[string]page // of files with a language in the name, by that language
}

// choose returns the page of the event's language, and lets functions write in that language. An event chooses among the pages
// that the folder has: it cannot name a file.
func (p *pages) choose(data *tmpl.Data) (page, error) {
	if p.language == nil {
		return p.standard, nil
	}

	text, err := p.language.Render(data)
	if err != nil {
		return page{}, err
	}

	tag, chosen := p.of(text)
	data.SetLocale(p.locales.Of(tag))
	return chosen, nil
}

// of returns the page for the text of a language, and the language in which functions write. It follows the parents of the
// language, such as de for de-AT.
func (p *pages) of(text string) (language.Tag, page) {
	tag, ok := parseLanguage(text)
	if !ok {
		return p.fallback, p.standard
	}

	for t := tag; !t.IsRoot(); t = t.Parent() {
		if chosen, ok := p.files[t.String()]; ok {
			return tag, chosen
		}
		if t == p.fallback {
			return tag, p.standard
		}
	}

	if p.files == nil { // inline: there is nothing to choose
		return tag, p.standard
	}
	return p.fallback, p.standard
}

// parseLanguage reads a language tag such as de-AT or de_AT. It keeps language, script and region, and drops extensions,
// which would choose other digits, for example.
func parseLanguage(text string) (language.Tag, bool) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxLanguage {
		return language.Und, false
	}

	tag, err := language.Parse(text)
	if err != nil {
		return language.Und, false
	}

	base, script, region := tag.Raw()
	tag, err = language.Compose(base, script, region)
	return tag, err == nil && !tag.IsRoot()
}

// languages checks the settings of languages.
func (c Config) languages() error {
	switch _, ok := parseLanguage(cmp.Or(c.DefaultLanguage, defaultLanguage)); {
	case !ok:
		return field.Errorf("default_language", "is not a language: write a tag such as en or de-AT")
	case c.DefaultLanguage != "" && c.Language == "":
		return field.Errorf("default_language", "has no effect without language: set language, or take it out")
	default:
		return nil
	}
}

// pages parses the templates in the configuration itself. Those of a folder follow in readFiles.
func (p *parser) pages(c Config) pages {
	all := pages{locales: locale.New()}
	all.fallback, _ = parseLanguage(cmp.Or(c.DefaultLanguage, defaultLanguage))
	all.language = p.parse("language", c.Language, tmpl.Checked)

	if !c.hasFolder() {
		all.standard = page{
			subject: p.parse("subject", c.Subject, tmpl.Text),
			text:    p.parse("text", c.Text, tmpl.Text),
			html:    p.parse("html", c.HTML, tmpl.HTML),
		}
	}
	return all
}
