package awsapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
)

// fault is the party at fault by an error code.
type fault uint8

const (
	faultUnknown     fault = iota
	faultMessage           // the event, or one of those in the request
	faultCredentials       // the key, or the token
	faultDestination       // the place, our permissions, or AWS
	faultInternal          // AWS, or one of its parts
	faultThrottled         // too many events, or uses of the key
)

// faultOf sorts the codes of the services, of AWS in general, and of KMS behind a place. See
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html#API_SendMessage_Errors,
// its like for the operations Publish, PutEvents and PutRecords, and CommonErrors.html beside
// them. Queues have codes in two styles.
func (s Service) faultOf(code string) (f fault, cure string) {
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	switch code {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameterValueException", "InvalidParameterCombination", "InvalidParameter",
		"InvalidParameterException", "ParameterValueInvalid", "MissingParameter", "BatchRequestTooLong", "InvalidAttributeValue", "InvalidAttributeName",
		"RequestEntityTooLarge", "ValidationException", "ValidationError", "InvalidArgument", "InvalidArgumentException", "MalformedDetail":
		return faultMessage, ""
	case "QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently", "InvalidAddress", "NotFound", "NotFoundException",
		"ResourceNotFound", "ResourceNotFoundException", "ResourceInUseException":
		return faultDestination, "check " + s.Settings + ", region and account"
	case "AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation", "InvalidSecurity", "AuthorizationError",
		"AuthorizationErrorException", "NotAuthorizedForSourceException", "NotAuthorizedForDetailTypeException", "InvalidAccountIdException":
		return faultDestination, "allow " + s.Rights
	case "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException", "ExpiredToken",
		"ExpiredTokenException", "InvalidAccessKeyId", "MissingAuthenticationToken", "MissingAuthenticationTokenException",
		"IncompleteSignature", "IncompleteSignatureException", "OptInRequired", "AuthFailure", "InvalidToken":
		return faultCredentials, "check the credentials"
	case "RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture":
		return faultDestination, "check the clock of this machine"
	case "RequestThrottled", "ThrottlingException", "Throttling", "Throttled", "ThrottledException", "RequestThrottledException",
		"RequestLimitExceeded", "TooManyRequestsException", "OverLimit", "BandwidthLimitExceeded", "SlowDown",
		"ProvisionedThroughputExceededException", "LimitExceededException":
		return faultThrottled, ""
	case "InternalError", "InternalErrorException", "InternalException", "InternalFailure", "InternalFailureException", "InternalServerError",
		"ServiceUnavailable", "ServiceUnavailableException", "ServiceFailure":
		return faultInternal, ""
	case "UnsupportedOperation", "InvalidAction", "UnknownOperationException", "InvalidEndpointException":
		return faultDestination, "check endpoint"
	default:
		return s.faultOfKey(code)
	}
}

// faultOfKey sorts the codes of KMS: Kms..., KMS... and KMS.....
func (s Service) faultOfKey(code string) (f fault, cure string) {
	switch {
	case len(code) < 3 || !strings.EqualFold(code[:3], "kms"):
		return faultUnknown, ""
	case strings.Contains(code, "Throttl"):
		return faultThrottled, ""
	default:
		return faultDestination, "look at the KMS key of the " + s.Place + "; allow kms:GenerateDataKey and kms:Decrypt"
	}
}

// RefusalError is an answer of AWS that refuses a request, or an entry of one.
type RefusalError struct {
	what fault
	text string
}

// Error returns one line.
func (r *RefusalError) Error() string { return r.text }

func (c *Conn) refusal(what fault, text string) *RefusalError {
	return &RefusalError{what, c.svc.Name + ": " + text}
}

// Classify returns the error of Deliver for that of a whole request. The error is marked unless
// the events themselves may be at fault: see [Sender]. ctx is that of the delivery and rctx that
// of the request.
func (c *Conn) Classify(ctx, rctx context.Context, err error) error {
	err = c.classify(ctx, rctx, err)
	if delivery.IsUnavailable(err) {
		c.transport.Renew()
	}
	return err
}

func (c *Conn) classify(ctx, rctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: maybe sent: %w", c.svc.Name, context.Cause(ctx))
	}
	var api smithy.APIError
	isAPI := errors.As(err, &api)
	switch op := innermost(err); {
	case isProgram(err):
		return delivery.Unavailable(errors.New(c.svc.Name + ": the credential_process of the profile has failed"))
	case isAPI && op != nil && op.Service() != c.svc.ID:
		return delivery.Unavailable(errors.New(c.svc.Name + ": getting credentials: " + op.Service() + " " + op.Operation() + ": " +
			c.say(api.ErrorCode(), api.ErrorMessage(), "check profile, assume_role_arn and the trust policy of the role")))
	case isAPI:
		return c.refused(api, statusOf(err))
	case rctx.Err() != nil:
		return delivery.Unavailable(fmt.Errorf("%s: no answer, maybe sent: %w", c.svc.Name, context.Cause(rctx)))
	default:
		return delivery.Unavailable(c.network(err))
	}
}

// ClassifyQuestion is Classify for a request that holds no event: none is ever at fault.
func (c *Conn) ClassifyQuestion(ctx, rctx context.Context, err error) error {
	err = c.Classify(ctx, rctx, err)
	if _, ok := errors.AsType[*RefusalError](err); ok && !delivery.IsUnavailable(err) && !delivery.IsThrottled(err) {
		return delivery.Unavailable(err)
	}
	return err
}

// isDenied reports whether the service accepts the credentials and refuses the question.
func (c *Conn) isDenied(err error) bool {
	var api smithy.APIError
	op := innermost(err)
	return errors.As(err, &api) && op != nil && op.Service() == c.svc.ID &&
		(strings.Contains(api.ErrorCode(), "AccessDenied") || strings.HasPrefix(api.ErrorCode(), "AuthorizationError"))
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
		last, err = op, op.Err
	}
}

func statusOf(err error) int {
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return response.HTTPStatusCode()
	}
	return 0
}

// refused classifies an answer that is not a success. Unknown codes are classified by the
// status, which for refused events is 400.
func (c *Conn) refused(api smithy.APIError, status int) error {
	what, cure := c.svc.faultOf(api.ErrorCode())
	if what == faultUnknown && (api.ErrorFault() == smithy.FaultServer || status != http.StatusBadRequest) {
		what = faultDestination
	}
	text := c.say(api.ErrorCode(), api.ErrorMessage(), cure)
	if api.ErrorCode() == unknownError {
		text = c.stranger(status)
	}
	r := c.refusal(what, text)
	switch what {
	case faultCredentials:
		return delivery.Unauthorized(r)
	case faultDestination, faultInternal:
		return delivery.Unavailable(r)
	case faultThrottled:
		return delivery.Throttled(0, r)
	default:
		return r
	}
}

// unknownError is the SDK's code for an answer without one.
const unknownError = "UnknownError"

func (c *Conn) stranger(status int) string {
	return fmt.Sprintf("HTTP %d %s, with an answer that is not from %s (check endpoint, and proxies)", status, http.StatusText(status), c.svc.Title)
}

// say makes one line of an error of AWS.
func (c *Conn) say(code, text, cure string) string {
	if strings.Contains(code, "Signature") {
		text = "" // it repeats the request, with the session token
	}
	line := oneline.Of(code, oneline.MaxReply)
	if text = c.clean(text); text != "" {
		line += ": " + text
	}
	if cure != "" {
		line += " (" + cure + ")"
	}
	return line
}

// mark is for an error about one event alone.
func mark(r *RefusalError) error {
	if r.what == faultMessage {
		return delivery.Permanent(r)
	}
	return r
}

// network describes why there is no answer. The SDK's own errors hold the whole
// request.
func (c *Conn) network(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return &oneline.Error{Text: c.svc.Name + ": " + c.clean(op.Error()), Cause: op}
	}
	if status := statusOf(err); status != 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New(c.svc.Name + ": maybe sent: " + c.stranger(status))
	}
	if o, ok := errors.AsType[*smithy.OperationError](err); ok {
		err = o.Err // its own text is the operation's name alone
	}
	return &oneline.Error{Text: c.svc.Name + ": " + c.clean(err.Error()), Cause: exhaust.Cause(err)}
}

// clean makes a text from outside fit for an error.
func (c *Conn) clean(text string) string { return oneline.Reply(text, c.redact) }
