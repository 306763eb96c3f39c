package tmpl

import (
	"strings"
	"time"
)

// current has the locale of an execution. Without one, values are written in the same way for all languages.
type current struct{ locale Locale }

// date writes a time, or an RFC 3339 text.
func (c *current) date(layout string, v any) (string, error) {
	t, err := toTime(v)
	switch {
	case err != nil:
		return "", err
	case c.locale == nil:
		return t.Format(layout), nil
	default:
		return c.locale.Date(layout, t), nil
	}
}

func toTime(v any) (time.Time, error) {
	switch v := v.(type) {
	case time.Time:
		return v, nil
	case string:
		t, err := time.Parse(time.RFC3339Nano, v)
		if err != nil {
			return t, funcErrorf("date: the text is not an RFC 3339 time such as 2026-01-02T15:04:05Z")
		}
		return t, nil
	default:
		return time.Time{}, funcErrorf("date: the value is neither a time nor an RFC 3339 text")
	}
}

// number writes a number with the digits that it has: 2.50 keeps its zero.
func (c *current) number(v any) (string, error) {
	s, err := toText(v)
	if err != nil {
		return "", err
	}

	exact, err := decimal(s)
	if err != nil {
		return "", err
	}

	text := exact.FloatString(fractionDigits(s))
	if c.locale == nil {
		return text, nil
	}

	text, err = c.locale.Number(text)
	if err != nil {
		return "", funcErrorf("number: %v", err)
	}
	return text, nil
}

// fractionDigits returns how many digits of a number are behind the point, once its exponent is written out.
func fractionDigits(s string) int {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")

	shift, negative := strings.CutPrefix(exponent, "-")
	n := 0
	for _, digit := range strings.TrimPrefix(shift, "+") {
		n = n*10 + int(digit-'0')
	}
	if negative {
		n = -n
	}
	return max(len(fraction)-n, 0)
}
