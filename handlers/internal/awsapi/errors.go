package awsapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// codes is the table of the codes of the services, of AWS in general, and of KMS behind a place. See
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html#API_SendMessage_Errors,
// its like for the operations Publish, PutEvents and PutRecords, and CommonErrors.html next to them.
func (s Service) codes() outcome.Table[string] {
	return outcome.Table[string]{
		{
			Codes: []string{"InvalidMessageContents", "BatchRequestTooLong", "RequestEntityTooLarge", "MalformedDetail"},
			Class: outcome.Permanent,
		},

		// A parameter may be wrong for every event: settings that do not fit the place, an emulator that lacks a feature.
		{
			Codes: []string{
				"InvalidParameterValue", "InvalidParameterValueException", "InvalidParameterCombination", "InvalidParameter",
				"InvalidParameterException",
				"ParameterValueInvalid", "MissingParameter", "InvalidAttributeValue", "InvalidAttributeName",
				"ValidationException", "ValidationError",
				"InvalidArgument", "InvalidArgumentException",
			},
			Class: outcome.Unclear, Cure: "look at the event, and at the settings of the " + s.Place,
		},
		{
			Codes: []string{
				"QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently", "InvalidAddress", "NotFound", "NotFoundException",
				"ResourceNotFound", "ResourceNotFoundException", "ResourceInUseException",
			},
			Class: outcome.Unavailable, Cure: "check " + s.Settings + ", region and account",
		},
		{
			Codes: []string{
				"AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation", "InvalidSecurity", "AuthorizationError",
				"AuthorizationErrorException", "NotAuthorizedForSourceException", "NotAuthorizedForDetailTypeException",
				"InvalidAccountIdException",
			},
			Class: outcome.Unavailable, Cure: "allow " + s.Rights,
		},
		{
			Codes: []string{
				"InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException", "ExpiredToken",
				"ExpiredTokenException", "InvalidAccessKeyId", "MissingAuthenticationToken", "MissingAuthenticationTokenException",
				"IncompleteSignature", "IncompleteSignatureException", "OptInRequired", "AuthFailure", "InvalidToken",
			},
			Class: outcome.Unauthorized, Cure: "check the credentials",
		},
		{
			Codes: []string{"RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"},
			Class: outcome.Unavailable, Cure: "check the clock of this machine",
		},
		{
			Codes: []string{
				"RequestThrottled", "ThrottlingException", "Throttling", "Throttled", "ThrottledException", "RequestThrottledException",
				"RequestLimitExceeded", "TooManyRequestsException", "OverLimit", "BandwidthLimitExceeded", "SlowDown",
				"ProvisionedThroughputExceededException", "LimitExceededException",
			},
			Class: outcome.Throttled,
		},
		{Codes: internalCodes(), Class: outcome.Unavailable},
		{
			Codes: []string{"UnsupportedOperation", "InvalidAction", "UnknownOperationException", "InvalidEndpointException"},
			Class: outcome.Unavailable, Cure: "check endpoint",
		},
		{Codes: []string{keyThrottled}, Class: outcome.Throttled},
		{
			Codes: []string{keyFailed},
			Class: outcome.Unavailable,
			Cure:  "look at the KMS key of the " + s.Place + "; allow kms:GenerateDataKey and kms:Decrypt",
		},
	}
}

// internalCodes are failures of AWS, or of one of its parts: where the place has taken other entries of a request, one
// that failed so is tried again.
func internalCodes() []string {
	return []string{
		"InternalError", "InternalErrorException", "InternalException", "InternalFailure", "InternalFailureException",
		"InternalServerError",
		"ServiceUnavailable", "ServiceUnavailableException", "ServiceFailure",
	}
}

// The codes of KMS are Kms..., KMS... and KMS.....; these two stand for all of them.
const (
	keyThrottled = "KMS throttles"
	keyFailed    = "KMS"
)

// lookUp returns the class and cure of a code, and the code without the prefix that queues have for codes of an
// older style.
func (s Service) lookUp(code string) (class outcome.Class, cure, short string) {
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	known := code
	switch {
	case len(code) < 3 || !strings.EqualFold(code[:3], keyFailed):
	case strings.Contains(code, "Throttl"):
		known = keyThrottled
	default:
		known = keyFailed
	}
	class, cure = s.codes().Find(false, known)
	return class, cure, code
}

// Classify turns the error of a whole request into the error of Deliver. The error is marked
// unless the events themselves may be at fault: see [Sender]. ctx is the context of the
// delivery, and rctx the context of the request.
func (c *Conn) Classify(ctx, rctx context.Context, err error) error {
	err = c.classify(ctx, rctx, err)
	c.transport.Learn(ctx, err)
	return err
}

func (c *Conn) classify(ctx, rctx context.Context, err error) error {
	var api smithy.APIError
	isAPI := errors.As(err, &api)
	switch op := innermost(err); {
	case ctx.Err() != nil:
		return c.out.NoAnswer(ctx, rctx, maybeSent, err)
	case isProgram(err):
		return delivery.Unavailable(c.out.Line(outcome.Failure{Text: "the credential_process of the profile has failed"}))
	case isAPI && op != nil && op.Service() != c.svc.ID:
		return delivery.Unavailable(c.out.Line(outcome.Failure{
			Text: "getting credentials: " + op.Service() + " " + op.Operation() + ": " + textOf(api.ErrorCode(), api.ErrorMessage()),
			Cure: "check profile, assume_role_arn and the trust policy of the role",
		}))
	case isAPI:
		return c.refused(api, statusOf(err))
	default:
		return c.noAnswer(ctx, rctx, err)
	}
}

// ClassifyQuestion is Classify for a request that holds no event, so that no event is at
// fault.
func (c *Conn) ClassifyQuestion(ctx, rctx context.Context, err error) error {
	err = c.Classify(ctx, rctx, err)
	if outcome.IsRefusal(err) {
		return outcome.Of(err).WithoutEvent().Mark(0, err)
	}
	return err
}

// isDenied reports whether the service accepts the credentials and refuses the question.
func (c *Conn) isDenied(err error) bool {
	var api smithy.APIError
	op := innermost(err)
	isOwn := op != nil && op.Service() == c.svc.ID
	if !isOwn || !errors.As(err, &api) {
		return false
	}

	code := api.ErrorCode()
	return strings.Contains(code, "AccessDenied") || strings.HasPrefix(code, "AuthorizationError")
}

// isProgram reports whether a program for credentials has failed. The error repeats
// its output.
func isProgram(err error) bool {
	_, ok := errors.AsType[*processcreds.ProviderError](err)
	return ok
}

// innermost returns the failed operation: for credentials, the SDK asks other services.
func innermost(err error) (last *smithy.OperationError) {
	for {
		op, ok := errors.AsType[*smithy.OperationError](err)
		if !ok {
			return last
		}
		last = op
		err = op.Err
	}
}

func statusOf(err error) int {
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return response.HTTPStatusCode()
	}
	return 0
}

// refused classifies an answer that is not a success. Unknown codes are classified by the
// status, which for refused events is 400: what such a code means for other events is unclear.
func (c *Conn) refused(api smithy.APIError, status int) error {
	class, cure, _ := c.svc.lookUp(api.ErrorCode())
	isEvents := api.ErrorFault() != smithy.FaultServer && status == http.StatusBadRequest

	switch {
	case class == outcome.Unknown && isEvents:
		class = outcome.UnclearRetry
	case class == outcome.Unknown:
		class = outcome.Unavailable
	}

	f := outcome.Failure{Text: textOf(api.ErrorCode(), api.ErrorMessage()), Cure: cure}
	if api.ErrorCode() == unknownError {
		f.Text, f.Cure = outcome.Stranger(status, c.svc.Title)
	}

	if class.MayBeEvents() {
		return &outcome.RefusalError{Class: class, Err: c.out.Line(f)}
	}
	return class.Mark(0, c.out.Line(f))
}

// unknownError is the SDK's code for an answer without one.
const unknownError = "UnknownError"

// maybeSent warns of a request without an answer.
const maybeSent = "maybe sent"

// textOf describes an error of AWS.
func textOf(code, text string) string {
	if text == "" || strings.Contains(code, "Signature") { // this text repeats the request, with the session token
		return code
	}
	return code + ": " + text
}

// noAnswer describes why no answer came. The SDK's own errors hold the whole request.
func (c *Conn) noAnswer(ctx, rctx context.Context, err error) error {
	if status := statusOf(err); status != 0 && rctx.Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		text, cure := outcome.Stranger(status, c.svc.Title)
		return delivery.Unavailable(c.out.Line(outcome.Failure{Text: maybeSent + ": " + text, Cure: cure}))
	}
	if o, ok := errors.AsType[*smithy.OperationError](err); ok {
		err = o.Err // its own text is the operation's name alone
	}
	return c.out.NoAnswer(ctx, rctx, maybeSent, err)
}
