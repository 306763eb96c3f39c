package when

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// MaxText is the longest expression, in characters.
	MaxText = 4096
	// maxDepth bounds the nesting of parentheses and operators.
	maxDepth = 100
	// maxLoops bounds the nesting of macros over a list, such as exists.
	maxLoops = 2
	// maxCost bounds one evaluation of an expression with a macro, in CEL's units of cost: one step of a loop costs a
	// few. An expression without a macro takes no more steps than it has parts. See bounds.go for the bytes that it reads.
	maxCost = 200_000
)

// Language compiles expressions. It is safe for concurrent use.
type Language struct{ env *cel.Env }

// New returns the language. It takes some milliseconds.
func New() (*Language, error) {
	env, err := cel.NewEnv(
		cel.Variable(nameID, cel.IntType),
		cel.Variable(nameType, cel.StringType),
		cel.Variable(nameAggregateType, cel.StringType),
		cel.Variable(nameAggregateID, cel.StringType),
		cel.Variable(nameCreatedAt, cel.TimestampType),
		cel.Variable(namePayload, cel.DynType),
		cel.Variable(nameHeaders, cel.MapType(cel.StringType, cel.StringType)),

		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(MaxText),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(
			cel.ValidateRegexLiterals(),
			cel.ValidateTimestampLiterals(),
			cel.ValidateDurationLiterals(),
			cel.ValidateComprehensionNestingLimit(maxLoops),
		),
	)
	if err != nil {
		return nil, fmt.Errorf("when: %w", err)
	}

	return &Language{env}, nil
}

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	text    string
	program cel.Program
	tree    *ast.AST
	loops   bool
	tracker *cost.Tracker
}

// Compile checks an expression. The error is a [*CompileError].
func (l *Language) Compile(text string) (*Expression, error) {
	return l.compile(text, "true or false: compare it with something", cel.BoolType)
}

// compile checks an expression that must yield one of the kinds. want names the kinds in errors.
func (l *Language) compile(text, want string, kinds ...*cel.Type) (*Expression, error) {
	checked, issues := l.env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, mistakeOf(text, issues.Errors())
	}

	if kind := checked.OutputType(); !slices.ContainsFunc(append(kinds, cel.DynType), kind.IsExactType) {
		return nil, &CompileError{
			Line:   1,
			Column: 1,
			Text:   fmt.Sprintf("it yields %s, and must be %s", article(kind.String()), want),
		}
	}

	program, err := l.env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CustomDecoratorV2(boundMatches))
	if err != nil {
		return nil, &CompileError{Line: 1, Column: 1, Text: oneLine(err.Error())}
	}

	x := &Expression{text: text, program: program, tree: checked.NativeRep()}
	x.loops = loops(x.tree)
	x.tracker, err = newTracker(x.loops)
	if err != nil {
		return nil, &CompileError{Line: 1, Column: 1, Text: oneLine(err.Error())}
	}

	return x, nil
}

// loops reports whether an expression has a macro that iterates over a list or an object.
func loops(tree *ast.AST) bool {
	return len(ast.MatchDescendants(ast.NavigateAST(tree), ast.KindMatcher(ast.ComprehensionKind))) > 0
}

// eval evaluates the expression. Without a loop it has few parts: their operands count only where the payload is large.
func (x *Expression) eval(f *facts) (ref.Val, error) {
	f.begin()
	if !x.loops && len(f.event.Payload) <= smallText {
		out, _, err := x.program.Eval(f)
		return out, err //nolint:wrapcheck // failure rewrites it
	}

	tracker, err := x.tracker.Clone()
	if err != nil {
		return nil, err //nolint:wrapcheck // failure rewrites it
	}
	tracker.Estimator = f

	frame, err := interpreter.NewExecutionFrame(f)
	if err != nil {
		return nil, err //nolint:wrapcheck // failure rewrites it
	}
	defer frame.Close()
	frame.SetCostTracker(tracker)

	out, _, err := x.program.Eval(frame)
	return out, err //nolint:wrapcheck // failure rewrites it
}

// String returns the text of the expression.
func (x *Expression) String() string { return x.text }

// Match evaluates the expression for an event. It implements [delivery.Filter]. All expressions about the same candidate
// share one decoded payload. The error is a [*EvalError].
func (x *Expression) Match(c *delivery.Candidate) (bool, error) {
	out, err := x.eval(factsOf(c))
	if err != nil {
		return false, x.failure(err)
	}

	yes, ok := out.(types.Bool)
	if !ok {
		return false, &EvalError{
			Expression: x.text,
			Line:       1,
			Column:     1,
			Part:       x.text,
			Text:       fmt.Sprintf("it yields %s here, and must be true or false", article(out.Type().TypeName())),
		}
	}

	return bool(yes), nil
}
