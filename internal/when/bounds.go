package when

import (
	"errors"
	"regexp"
	"regexp/syntax"

	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// This file bounds the cost of one evaluation. A writer of events must not be able to stop a relay with a payload, so
// the cost is linear in the size of the event, whatever the event holds:
//
//   - maxCost bounds the steps of loops;
//   - document.left bounds the bytes that the expression reads, both from the payload and as operands of functions;
//   - maxMatch bounds regular expressions, whose steps grow with their own length, too.
//
// An expression that exceeds a bound is canceled. The event then fails as it does for any other error.

const (
	errSteps  = "it takes too many steps for this event: go through fewer elements"
	errRead   = "it reads more than 16 times the payload and 1 MiB: compare smaller members, and fewer of them"
	errNested = "the payload has more than 10,000 lists and objects within each other"
	errMatch  = "the text is too long for matches with this regular expression: ask for size(...) before, or write a shorter one"
)

const (
	matches = "matches" // the function for regular expressions
	// boundedMatches replaces it. With its former name CEL would replace it once more.
	boundedMatches = "notifyd_matches"
)

// maxMatch bounds the length of a text times the instructions of the regular expression, for one call of matches: 0.1 s.
const maxMatch = 4 << 20

// cancel ends the evaluation. No operator of an expression can hide it, as || hides an error.
func cancel(text string) {
	panic(interpreter.EvalCancelledError{Message: text, Cause: interpreter.CostLimitExceeded})
}

// newTracker returns what counts the steps of an expression, and the operands of its functions.
func newTracker(loops bool) (*cost.Tracker, error) {
	var options []cost.TrackerOption
	if loops {
		options = append(options, cost.TrackerLimit(maxCost))
	}
	return cost.NewTracker(nil, options...) //nolint:wrapcheck // a CompileError has the text
}

// length returns the bytes of a text.
func length(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	}
	return 0
}

// boundMatches replaces calls of matches by ones that refuse texts that are too long for their regular expression. Only
// the configuration has regular expressions: one from an event could take any time to compile.
func boundMatches(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || call.Function() != matches || len(call.Args()) != 2 {
		return i, nil
	}

	constant, ok := call.Args()[1].(interpreter.InterpretableConst)
	if !ok {
		return nil, errors.New("matches needs a regular expression that is written out: it does not take one from the event")
	}

	source, ok := constant.Value().(types.String)
	if !ok {
		return i, nil // it fails
	}

	pattern, err := regexp.Compile(string(source))
	if err != nil {
		return nil, err //nolint:wrapcheck // a CompileError has the text
	}

	size, err := instructions(string(source))
	if err != nil {
		return nil, err
	}

	return interpreter.NewCall(call.ID(), boundedMatches, call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
		text, ok := args[0].(types.String)
		if !ok {
			return types.NoSuchOverloadErr()
		}

		if len(text)*size > maxMatch {
			cancel(errMatch)
		}

		return types.Bool(pattern.MatchString(string(text)))
	}), nil
}

// instructions returns the size of a regular expression: the steps for one character of a text grow with it.
func instructions(source string) (int, error) {
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return 0, err //nolint:wrapcheck // a CompileError has the text
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return 0, err //nolint:wrapcheck // a CompileError has the text
	}
	return len(program.Inst), nil
}
