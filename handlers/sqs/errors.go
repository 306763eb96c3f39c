package sqs

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
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
)

// fault is the party at fault by an error code.
type fault uint8

const (
	faultUnknown     fault = iota
	faultMessage           // the message, or one of those in the request
	faultDestination       // the queue, our permissions, or AWS
	faultInternal          // AWS, or one of its parts
	faultThrottled         // too many messages, or uses of the key
)

// faultOf sorts the codes of SQS, of AWS in general, and of KMS behind the
// queue. See https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html#API_SendMessage_Errors
// and CommonErrors.html beside it. Queues have codes in two styles.
func faultOf(code string) (f fault, cure string) {
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	switch code {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameterCombination", "MissingParameter", "BatchRequestTooLong",
		"InvalidAttributeValue", "InvalidAttributeName", "RequestEntityTooLarge":
		return faultMessage, ""
	case "QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently", "InvalidAddress":
		return faultDestination, "check queue or queue_url, region and account"
	case "AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation", "InvalidSecurity":
		return faultDestination, "allow sqs:SendMessage on the queue, and sqs:GetQueueUrl if it is given by name"
	case "KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired",
		"KMS.AccessDeniedException", "KMS.DisabledException", "KMS.InvalidKeyUsageException", "KMS.InvalidStateException",
		"KMS.NotFoundException", "KMS.OptInRequired":
		return faultDestination, "look at the KMS key of the queue; allow kms:GenerateDataKey and kms:Decrypt"
	case "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException", "ExpiredToken",
		"ExpiredTokenException", "InvalidAccessKeyId", "MissingAuthenticationToken", "MissingAuthenticationTokenException",
		"IncompleteSignature", "IncompleteSignatureException", "OptInRequired", "AuthFailure", "InvalidToken":
		return faultDestination, "check the credentials"
	case "RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture":
		return faultDestination, "check the clock of this machine"
	case "RequestThrottled", "ThrottlingException", "Throttling", "ThrottledException", "RequestThrottledException", "KmsThrottled",
		"KMS.ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException", "OverLimit", "BandwidthLimitExceeded", "SlowDown":
		return faultThrottled, ""
	case "InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "ServiceUnavailableException", "ServiceFailure":
		return faultInternal, ""
	case "UnsupportedOperation", "InvalidAction", "UnknownOperationException", "InvalidEndpointException":
		return faultDestination, "check endpoint"
	default:
		return faultUnknown, ""
	}
}

// refusal is an answer of AWS that refuses the request.
type refusal struct {
	what fault
	text string
}

// Error returns one line.
func (r *refusal) Error() string { return "sqs: " + r.text }

// judge returns the error of Deliver for that of a whole request. The error is marked
// unless the messages themselves may be at fault: see refusal.mark. ctx is that of
// the delivery and rctx that of the request.
func (h *Handler) judge(ctx, rctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("sqs: maybe sent: %w", context.Cause(ctx))
	}
	var api smithy.APIError
	isAPI := errors.As(err, &api)
	switch op := innermost(err); {
	case isProgram(err):
		return delivery.Unavailable(errors.New("sqs: the credential_process of the profile has failed"))
	case isAPI && op != nil && op.Service() != awssqs.ServiceID:
		return delivery.Unavailable(errors.New("sqs: getting credentials: " + op.Service() + " " + op.Operation() + ": " +
			h.say(api.ErrorCode(), api.ErrorMessage(), "check profile, assume_role_arn and the trust policy of the role")))
	case isAPI:
		return h.refused(api, statusOf(err))
	case rctx.Err() != nil:
		return delivery.Unavailable(fmt.Errorf("sqs: no answer, maybe sent: %w", context.Cause(rctx)))
	default:
		return delivery.Unavailable(h.network(err))
	}
}

// isProgram reports whether a program for credentials has failed. The error repeats
// its output.
func isProgram(err error) bool {
	_, ok := errors.AsType[*processcreds.ProviderError](err)
	return ok
}

// innermost returns the failed operation: for credentials, the SDK asks other
// services than SQS.
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

// refused judges an answer that is not a success. Unknown codes are judged by the
// status, which for refused messages is 400.
func (h *Handler) refused(api smithy.APIError, status int) error {
	what, cure := faultOf(api.ErrorCode())
	if what == faultUnknown && (api.ErrorFault() == smithy.FaultServer || status != http.StatusBadRequest) {
		what = faultDestination
	}
	text := h.say(api.ErrorCode(), api.ErrorMessage(), cure)
	if api.ErrorCode() == unknownError {
		text = notSQS(status)
	}
	r := &refusal{what, text}
	switch what {
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

func notSQS(status int) string {
	return fmt.Sprintf("HTTP %d %s, with an answer that is not from SQS (check endpoint, and proxies)", status, http.StatusText(status))
}

// say makes one line of an error of AWS.
func (h *Handler) say(code, text, cure string) string {
	if strings.Contains(code, "Signature") {
		text = "" // it repeats the request, with the session token
	}
	line := oneline.Of(code, oneline.MaxReply)
	if text = h.clean(text); text != "" {
		line += ": " + text
	}
	if cure != "" {
		line += " (" + cure + ")"
	}
	return line
}

// mark is for an error about one message alone.
func mark(err error) error {
	if r, ok := errors.AsType[*refusal](err); ok && r.what == faultMessage {
		return delivery.Permanent(err)
	}
	return err
}

// network describes why there is no answer. The SDK's own errors hold the whole
// request.
func (h *Handler) network(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return &oneline.Error{Text: "sqs: " + h.clean(op.Error()), Cause: op}
	}
	if status := statusOf(err); status != 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("sqs: maybe sent: " + notSQS(status))
	}
	if o, ok := errors.AsType[*smithy.OperationError](err); ok {
		err = o.Err // its own text is the operation's name alone
	}
	return errors.New("sqs: " + h.clean(err.Error()))
}

// clean makes a text from outside fit for an error.
func (h *Handler) clean(text string) string { return oneline.Reply(text, h.redact) }
