package tmpl

import (
	"encoding/json"
	"math/big"
	"strings"
)

// money writes an amount. An integer counts minor units; a text, or a number
// with a point, is a decimal amount. An amount with more digits than the currency
// is an error: a template must not round money.
func (c *current) money(amount, currency any) (string, error) {
	cur, err := toText(currency)
	if err != nil {
		return "", err
	}

	cur = strings.ToUpper(strings.TrimSpace(cur))
	if len(cur) != 3 || strings.Trim(cur, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return "", funcErrorf("money: the currency is not a code of three letters such as EUR")
	}

	s, err := toText(amount)
	if err != nil {
		return "", err
	}

	value, err := decimal(s)
	if err != nil {
		return "", err
	}

	scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(minorDigits(cur))), nil))
	if countsMinorUnits(amount) {
		value.Quo(value, scale)
	}

	if !new(big.Rat).Mul(value, scale).IsInt() {
		return "", funcErrorf("money: the amount has more than %d digits after the point", minorDigits(cur))
	}

	text := value.FloatString(minorDigits(cur))
	if c.locale == nil {
		return text + " " + cur, nil
	}
	return c.locale.Money(text, cur), nil
}

func countsMinorUnits(amount any) bool {
	switch a := amount.(type) {
	case int, int64:
		return true
	case json.Number:
		return !strings.ContainsAny(a.String(), ".eE")
	default:
		return false
	}
}

// minorDigits returns how many digits a currency has after the point (ISO 4217).
func minorDigits(currency string) int {
	switch currency {
	case "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0
	case "BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND":
		return 3
	default:
		return 2
	}
}
