// Package locale formats amounts, numbers and dates by language, with the data of the Unicode CLDR.
// docs/design/dependencies.md has the reasons for its three modules.
package locale

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bojanz/currency"
	"github.com/gohugoio/locales"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"golang.org/x/text/number"
)

// Locales makes locales, and keeps the data of the languages that were used. It is safe for concurrent use.
type Locales struct {
	known map[string]func() locales.Translator
	used  sync.Map // of locales.Translator, by the keys of known
}

// New returns Locales without data.
func New() *Locales { return &Locales{known: known()} }

// Locale formats values for one language. It implements tmpl.Locale.
type Locale struct {
	tag   language.Tag
	dates locales.Translator
}

// Of returns the locale of a language. A language without names of months uses those of its parent, and in the end English.
func (l *Locales) Of(tag language.Tag) Locale {
	for t := tag; !t.IsRoot(); t = t.Parent() {
		if dates := l.dates(t.String()); dates != nil {
			return Locale{tag: tag, dates: dates}
		}
	}
	return Locale{tag: tag, dates: l.dates("en")}
}

func (l *Locales) dates(name string) locales.Translator {
	if t, ok := l.used.Load(name); ok {
		return t.(locales.Translator) //nolint:forcetypeassert // nothing else is stored
	}
	load, ok := l.known[name]
	if !ok {
		return nil
	}

	t := load()
	l.used.Store(name, t)
	return t
}

// Money formats an amount, a decimal number with all digits of its currency.
func (l Locale) Money(amount, code string) string {
	a, err := currency.NewAmount(amount, code)
	if err != nil { // no currency of ISO 4217
		if text, err := l.Number(amount); err == nil {
			amount = text
		}
		return amount + "\u00a0" + code
	}

	_, fraction, _ := strings.Cut(amount, ".")
	f := currency.NewFormatter(currency.NewLocale(l.tag.String()))
	f.MinDigits = uint8(len(fraction)) //nolint:gosec // a currency has few
	f.MaxDigits = f.MinDigits
	return f.Format(a)
}

// mostDigits is how many digits a float64, which number.Decimal needs for a fraction, holds for sure.
const mostDigits = 15

// Number formats a decimal number with all its digits. It fails for more digits than a float64 holds.
func (l Locale) Number(text string) (string, error) {
	digits := strings.TrimLeft(strings.ReplaceAll(strings.TrimPrefix(text, "-"), ".", ""), "0")
	if len(digits) > mostDigits {
		return "", errors.New("the value has more than 15 digits: print it without number, or round it with fixed")
	}

	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return "", errors.New("the value is not a number")
	}
	_, fraction, _ := strings.Cut(text, ".")
	return message.NewPrinter(l.tag).Sprint(number.Decimal(value, number.Scale(len(fraction)))), nil
}

// Date formats a time. In a layout of package time, names of months and days are translated. The layouts short and long are
// the formats of the language.
func (l Locale) Date(layout string, t time.Time) string {
	switch layout {
	case "short":
		return l.dates.FmtDateShort(t)
	case "long":
		return l.dates.FmtDateLong(t)
	}

	var text strings.Builder
	for layout != "" {
		at, name := nextName(layout)
		text.WriteString(t.Format(layout[:at]))
		layout = layout[at+len(name):]

		switch name {
		case "January":
			text.WriteString(l.dates.MonthWide(t.Month()))
		case "Jan":
			text.WriteString(shortName(l.dates.MonthsAbbreviated(), l.dates.MonthsWide(), int(t.Month())-1))
		case "Monday":
			text.WriteString(l.dates.WeekdayWide(t.Weekday()))
		case "Mon":
			text.WriteString(shortName(l.dates.WeekdaysAbbreviated(), l.dates.WeekdaysWide(), int(t.Weekday())))
		}
	}
	return text.String()
}

// nextName finds the first name of a month or a day in a layout. As in package time, a small letter behind Jan or Mon makes
// another word. Without a name it returns the length of the layout.
func nextName(layout string) (at int, name string) {
	for at := range len(layout) {
		rest := layout[at:]
		for _, name := range []string{"January", "Monday"} {
			if strings.HasPrefix(rest, name) {
				return at, name
			}
		}

		for _, name := range []string{"Jan", "Mon"} {
			after, ok := strings.CutPrefix(rest, name)
			isWord := after != "" && after[0] >= 'a' && after[0] <= 'z'
			if ok && !isWord {
				return at, name
			}
		}
	}
	return len(layout), ""
}

// shortName returns a short name, or the long one in a language whose short ones are not complete.
func shortName(short, long []string, i int) string {
	if len(short) == len(long) {
		return short[i]
	}
	return long[i]
}
