package handlers

// Message chooses the form of a message. The zero value is the payload as it is.
type Message struct {
	// Format is payload (default), cloudevents_binary or cloudevents_structured. It goes with no Body.
	Format Format `json:"format,omitempty" yaml:"format,omitempty" jsonschema:"enum=payload,enum=cloudevents_binary,enum=cloudevents_structured" jsonschema_description:"Form of the body: the payload byte for byte, or a CloudEvent 1.0. 'cloudevents_binary' needs a destination with headers."`
	// Source is the CloudEvents attribute "source", a URI reference that is
	// unique together with the event's id; the default is "/notifyd".
	Source string `json:"cloudevents_source,omitempty" yaml:"cloudevents_source,omitempty" jsonschema_description:"The attribute 'source' of a CloudEvent, such as '/shop/orders'." kind:"URI reference" unset:"'/notifyd'"`
	// Body is the body (template) in place of a form; the headers are the same as with the form
	// payload. If ContentType is JSON, the result must be JSON: write values as {{ json .Payload.name
	// }}.
	Body string `json:"body,omitempty" yaml:"body,omitempty" jsonschema_description:"The body, in place of 'format'. Values are escaped for 'content_type': within quotes, or with '{{ json .Payload.name }}'." kind:"template"`
	// ContentType is the media type of Body; the default is application/json.
	ContentType string `json:"content_type,omitempty" yaml:"content_type,omitempty" jsonschema_description:"Media type of 'body'." unset:"'application/json'"`
}

// Format is the form of a message.
type Format string

const (
	// FormatPayload sends the payload byte for byte, and the other fields of the event in
	// headers whose names begin with notifyd-.
	FormatPayload Format = "payload"
	// FormatCloudEventsBinary is the binary mode of CloudEvents 1.0: the payload is
	// the body, byte for byte, and the attributes are headers.
	FormatCloudEventsBinary Format = "cloudevents_binary"
	// FormatCloudEventsStructured is the structured mode of CloudEvents 1.0: the body
	// is a JSON object with the attributes and the payload under "data".
	FormatCloudEventsStructured Format = "cloudevents_structured"
)
