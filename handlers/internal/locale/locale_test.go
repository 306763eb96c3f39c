package locale

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/text/language"

	"github.com/notifyd/notifyd/internal/tmpl"
)

var _ tmpl.Locale = Locale{}

func TestLocale(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, time.January, 5, 15, 4, 0, 0, time.UTC)
	all := New()
	for tag, want := range map[string]string{
		"en":         "€1,234.50 | -$0.05 | ¥1,234 | 1,234.50 | January 5, 2026 | 1/5/26 | Mon 5 Jan 15:04 | Monday, 5. January 2026",
		"en-GB":      "€1,234.50 | -US$0.05 | JP¥1,234 | 1,234.50 | 5 January 2026 | 05/01/2026 | Mon 5 January 15:04 | Monday, 5. January 2026",
		"de":         "1.234,50 € | -0,05 $ | 1.234 ¥ | 1.234,50 | 5. Januar 2026 | 05.01.26 | Mo. 5 Jan. 15:04 | Montag, 5. Januar 2026",
		"de-AT":      "€ 1.234,50 | -$ 0,05 | ¥ 1.234 | 1 234,50 | 5. Jänner 2026 | 05.01.26 | Mo. 5 Jän. 15:04 | Montag, 5. Jänner 2026",
		"fr":         "1 234,50 € | -0,05 $US | 1 234 ¥ | 1 234,50 | 5 janvier 2026 | 05/01/2026 | lun. 5 janv. 15:04 | lundi, 5. janvier 2026",
		"pl":         "1234,50 € | -0,05 $ | 1234 ¥ | 1 234,50 | 5 stycznia 2026 | 5.01.2026 | pon. 5 sty 15:04 | poniedziałek, 5. stycznia 2026",
		"cs":         "1 234,50 € | -0,05 US$ | 1 234 JP¥ | 1 234,50 | 5. ledna 2026 | 05.01.26 | po 5 led 15:04 | pondělí, 5. ledna 2026",
		"ja":         "€1,234.50 | -$0.05 | ￥1,234 | 1,234.50 | 2026年1月5日 | 2026/01/05 | 月 5 1月 15:04 | 月曜日, 5. 1月 2026",
		"zh-Hant-TW": "€1,234.50 | -US$0.05 | ¥1,234 | 1,234.50 | 2026年1月5日 | 2026/1/5 | 週一 5 1月 15:04 | 星期一, 5. 1月 2026",
		"de-LI":      "€ 1'234.50 | -$ 0.05 | ¥ 1'234 | 1’234.50 | 5. Januar 2026 | 05.01.26 | Mo. 5 Jan. 15:04 | Montag, 5. Januar 2026",
		"vo":         "€1,234.50 | -$0.05 | ¥1,234 | 1,234.50 | January 5, 2026 | 1/5/26 | Mon 5 Jan 15:04 | Monday, 5. January 2026", // no data
	} {
		l := all.Of(language.MustParse(tag))
		number, err := l.Number("1234.50")
		if err != nil {
			t.Error(err)
		}
		got := strings.Join([]string{
			l.Money("1234.50", "EUR"), l.Money("-0.05", "USD"), l.Money("1234", "JPY"), number,
			l.Date("long", day), l.Date("short", day), l.Date("Mon 2 Jan 15:04", day), l.Date("Monday, 2. January 2006", day),
		}, " | ")
		got = strings.NewReplacer("\u00a0", " ", "\u202f", " ").Replace(got)
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", tag, got, want)
		}
	}
}

// TestEveryDay: no language panics or yields nothing at a day of the year, as some of the module do for names that are not
// used here.
func TestEveryDay(t *testing.T) {
	t.Parallel()
	all := New()
	for name := range known() {
		l := all.Of(language.MustParse(name))
		if got := strings.ReplaceAll(l.dates.Locale(), "_", "-"); got != name {
			t.Errorf("%s has the dates of %s", name, got)
		}
		for i := range 366 {
			day := time.Date(2028, time.January, 1+i, 0, 0, 0, 0, time.UTC)
			for _, layout := range []string{"short", "long", "January", "Jan", "Monday", "Mon"} {
				if got := l.Date(layout, day); got == "" || strings.Contains(got, "ccc") {
					t.Fatalf("%s: %s of %v yields %q", name, layout, day, got)
				}
			}
		}
	}
}

func TestLayoutsWithoutNames(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, time.January, 5, 15, 4, 0, 0, time.UTC)
	l := New().Of(language.German)
	for _, layout := range []string{time.RFC3339, "Janet Monk", "02.01.06 3PM MST", "", "Mone 2", "Januar"} {
		if got, want := l.Date(layout, day), day.Format(layout); got != want {
			t.Errorf("%q yields %q, want %q", layout, got, want)
		}
	}
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	l := New().Of(language.German)
	for text, want := range map[string]string{
		"0": "0", "-0.10": "-0,10", "123456789012345": "123.456.789.012.345", "0.000000000000001": "0,000000000000001", "1234567890.12345": "1.234.567.890,12345",
		"1234567890123456": "", "0.1234567890123456": "", "12345678901234.50": "",
	} {
		got, err := l.Number(text)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s yields %q, %v, want %q", text, got, err, want)
		}
	}
	if got := l.Money("1234.50", "XYZ"); got != "1.234,50\u00a0XYZ" {
		t.Errorf("an unknown currency yields %q", got)
	}
	if got := l.Money("12345678901234567890.50", "EUR"); got != "12.345.678.901.234.567.890,50\u00a0€" {
		t.Errorf("a large amount yields %q", got)
	}
}
