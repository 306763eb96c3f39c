package handlers

// Message chooses the form of a message. The zero value is the payload as it is.
type Message struct {
	// Form of the body: the payload byte for byte, or a CloudEvent 1.0.
	// `cloudevents_binary` needs a destination with headers.
	//
	// The default is payload. Format excludes Body.
	Format Format `json:"format,omitempty" yaml:"format,omitempty" enum:"payload,cloudevents_binary,cloudevents_structured"`

	// The attribute `source` of a CloudEvent, such as `/shop/orders`.
	//
	// Source and the event's id together are unique.
	Source string `json:"cloudevents_source,omitempty" yaml:"cloudevents_source,omitempty" kind:"URI reference" unset:"'/notifyd'"`

	// The body, in place of `format`. Values are escaped for `content_type`: within
	// quotes, or with `{{ json .Payload.name }}`.
	//
	// The message has the headers of the format payload. If ContentType is JSON,
	// the result must be JSON.
	Body string `json:"body,omitempty" yaml:"body,omitempty" kind:"template"`

	// Media type of `body`.
	ContentType string `json:"content_type,omitempty" yaml:"content_type,omitempty" unset:"'application/json'"`
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
