package when

import (
	"fmt"
	"strconv"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/notifyd/notifyd/delivery"
)

// CompileKey checks an expression that yields a key: a text, a whole number, or true or false. The error is a
// [*CompileError].
func (l *Language) CompileKey(text string) (*Expression, error) {
	return l.compile(text, "a text or a whole number", cel.StringType, cel.IntType, cel.BoolType)
}

// Key evaluates an expression that CompileKey has compiled: it is a [delivery.RateKey]. The error is a [*EvalError].
func (x *Expression) Key(c *delivery.Candidate) (string, error) {
	out, err := x.eval(factsOf(c))
	if err != nil {
		return "", x.failure(err)
	}

	switch v := out.(type) {
	case types.String:
		return string(v), nil
	case types.Int:
		return strconv.FormatInt(int64(v), 10), nil
	case types.Bool:
		return strconv.FormatBool(bool(v)), nil
	}

	return "", &EvalError{
		Expression: x.text,
		Line:       1,
		Column:     1,
		Part:       x.text,
		Text:       fmt.Sprintf("it yields %s here, and must be a text or a whole number", article(out.Type().TypeName())),
	}
}

// factsOf returns the facts of a candidate, which all expressions about the candidate share.
func factsOf(c *delivery.Candidate) *facts {
	f, ok := c.Memo.(*facts)
	if !ok {
		f = &facts{event: c.Event}
		c.Memo = f
	}
	return f
}
