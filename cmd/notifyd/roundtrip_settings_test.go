//go:build unix

package main

// everySetting are destinations that together have every setting of every type, with a
// value that is not the default.
const everySetting = `
  log: {type: log, output: stderr, payload: false}
  email-1:
    type: email
    host: smtp.example.com
    port: 2525
    username: shop
    password: ${env:SECRET}
    auth: scram-sha-256
    tls: opportunistic
    ca_file: tls/tls.crt
    server_name: mail.example.com
    helo: relay.example.com
    from: Shop <shop@example.com>
    to: ["{{ .Payload.email }}", b@example.com]
    cc: c@example.com
    bcc: [d@example.com]
    reply_to: help@example.com
    subject: "Order {{ .Payload.order }} $${not expanded} $5"
    text: "See https://shop.example.com/help: write to help@example.com\n\n  100% {{ money .Payload.total_cents \"EUR\" }}\n"
    html: "<p>${env:WORDS}</p>"
    headers: {X-Shop: main, X-Api-Token: "${env:SECRET}"}
    message_id_domain: example.com
    concurrency: 9
    connections: 5
    max_connection_mails: 30
    max_connection_age: 1m30s
    connect_timeout: 3s
    send_timeout: 4s
    timeout: 30s
    maybe_sent: accept
  email-2: {type: email, host: smtp.example.com, tls: none, from: a@example.com, to: b@example.com, subject: s, text_file: t.txt, html_file: t.html}
  email-4: {type: email, host: smtp.example.com, auth: xoauth2, username: shop, token_command: [print-token, "--for", smtp], token_lifetime: 7m, from: a@example.com, to: b@example.com, subject: s, text: t}
  email-5: {type: email, host: smtp.example.com, auth: xoauth2, username: shop, token_file: token.txt, from: a@example.com, to: b@example.com, subject: s, text: t}
  email-3: {type: email, host: "${env:HOST}", tls: implicit, from: a@example.com, to: b@example.com, subject: s, text: t}
  kafka-1:
    type: kafka
    brokers: [k1.example.com:9092, k2.example.com]
    topic: "{{ .Event.Type }}"
    key: "{{ .Event.AggregateID }}"
    partition: '{{ get .Headers "partition" | default "" }}'
    tombstones: true
    format: cloudevents_binary
    cloudevents_source: /shop
    tls: {ca_file: tls/tls.crt, cert_file: tls/tls.crt, key_file: tls/tls.key, server_name: kafka}
    sasl: {mechanism: plain, username: shop, password: "${env:SECRET}", allow_unencrypted: true}
    client_id: shop
    compression: zstd
    max_message_bytes: 2048
    delivery_timeout: 7s
    allow_auto_topic_creation: true
    transactional: true
    transactional_id: shop
    concurrency: 2
    batch: 11
    timeout: 20s
  kafka-2: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: oauthbearer, token_file: token.txt}, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  kafka-tokens: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: oauthbearer, token_command: [print-token], token_lifetime: 7m}}
  kafka-8: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: oauthbearer, oauth: {token_url: "https://login.example.com/token", client_id: shop, client_secret: "${env:SECRET}", scopes: [write]}}}
  kafka-9: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: aws-msk-iam}}
  kafka-3: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: oauthbearer, token: "${file:secret.txt}"}, format: cloudevents_structured}
  kafka-4: {type: kafka, brokers: k.example.com, topic: t, exactly_once: true, positions_topic: places, transactional_id: shop-1}
  kafka-5: {type: kafka, brokers: k.example.com, topic: t, exactly_once: true, batch: 1000}
  kafka-6:
    type: kafka
    brokers: k.example.com
    topic: t
    schema_registry:
      url: https://registry.example.com/api
      username: shop
      password: "${env:SECRET}"
      tls: {ca_file: tls/tls.crt, cert_file: tls/tls.crt, key_file: tls/tls.key, server_name: registry}
      subject: "orders-{{ .Event.Type }}"
      version: "3"
      message_indexes: [1, 0]
  kafka-7: {type: kafka, brokers: k.example.com, topic: t, schema_registry: {url: "http://registry.example.com", username: shop, password: "${env:SECRET}", allow_unencrypted: true}}
  rabbitmq-1:
    type: rabbitmq
    host: mq.example.com
    port: 5700
    username: shop
    password: ${env:SECRET}
    vhost: shop
    tls: {server_name: mq}
    auth: plain
    connection_name: shop
    exchange: "{{ .Event.AggregateType }}"
    routing_key: "{{ .Event.Type }}.x"
    format: cloudevents_structured
    cloudevents_source: /shop
    message_priority: '{{ get .Headers "priority" | default "" }}'
    expiration: 90s
    app_id: shop
    transient: true
    unroutable: drop
    strict_order: true
    declare:
      exchanges: [{name: shop, type: topic, transient: true, arguments: {alternate-exchange: other}}]
      queues: [{name: q, transient: true, arguments: {x-queue-type: quorum, x-max-length: 5, x-dead-letter-routing-key: late, x-single-active-consumer: true}}]
      bindings: [{exchange: shop, queue: q, routing_key: "order.#", arguments: {x-match: any}}]
    max_message_bytes: 1000
    heartbeat: 3s
    connect_timeout: 4s
    write_timeout: 5s
    confirm_timeout: 6s
    concurrency: 2
    batch: 12
    timeout: 40s
    priority: 5
  rabbitmq-2: {type: rabbitmq, url: "amqps://shop:${env:SECRET}@mq.example.com/v", routing_key: q, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  rabbitmq-3: {type: rabbitmq, routing_key: q, auth: external, tls: {cert_file: tls/tls.crt, key_file: tls/tls.key}}
  webhook-1:
    type: webhook
    url: https://{{ .Payload.host }}/in/${env:WORDS}
    dynamic_host: true
    method: PATCH
    body: '{"order": {{ json .Payload.order }}}'
    content_type: application/json; charset=utf-8
    headers: {X-Shop: main, X-Signature: "v1 ${env:SECRET}"}
    id_prefix: shop-
    signing_secrets: ["${env:SIGNING_SECRET}", "whsec_${env:SIGNING_KEY}"]
    tls: {ca_file: tls/tls.crt}
    proxy_url: none
    addresses: public
    event_headers: [X-Tenant, baggage_id]
    allow_addresses: [10.1.0.0/16, 10.2.0.1]
    max_connection_age: 1m30s
    connect_timeout: 1s
    tls_timeout: 2s
    response_timeout: 3s
    request_timeout: 4s
    host_rate_limit: 2.5
    host_concurrency: 3
    concurrency: 4
    timeout: 50s
  webhook-2: {type: webhook, url: "https://h.example.com/x?shop=1", username: shop, password: "${env:SECRET}", format: cloudevents_binary, cloudevents_source: /shop, proxy_url: "http://u:${env:SECRET}@proxy.example.com:3128"}
  webhook-4: {type: webhook, url: "https://h.example.com", batch_format: cloudevents, cloudevents_source: /shop, batch_bytes: 2000, batch: 7}
  webhook-5: {type: webhook, url: "https://h.example.com", batch_format: ndjson, body: '{"order": {{ json .Payload.order }}}'}
  webhook-3: {type: webhook, url: "${env:HOOK_URL}", bearer_token: "${env:SECRET}"}
  slack-1:
    type: slack
    token: ${env:SLACK_TOKEN}
    channel: C0123456789
    text: "Order {{ .Payload.order }} <https://shop.example.com/orders|all>"
    blocks: '[{"type": "section", "text": {"type": "mrkdwn", "text": "x"}}]'
    raw_values: true
    thread_ts: '{{ get .Headers "ts" | default "" }}'
    unfurl_links: true
    unfurl_media: false
    username: shop
    icon_emoji: ":bell:"
    api_url: https://gateway.example.com/api
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    timeout: 9s
  slack-2: {type: slack, webhook_url: "${env:HOOK_URL}", text: t, icon_url: https://shop.example.com/icon.png}
  sqs-1:
    type: sqs
    queue: orders.fifo
    queue_owner: "123456789012"
    group_id: "{{ .Event.AggregateID }}"
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://sqs.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  sqs-2: {type: sqs, queue_url: https://sqs.eu-central-1.amazonaws.com/123456789012/orders, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  sqs-3: {type: sqs, queue: orders, region: eu-west-1}
  sns-1:
    type: sns
    topic_arn: arn:aws:sns:eu-central-1:123456789012:orders.fifo
    group_id: "{{ .Event.AggregateID }}"
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://sns.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  sns-2: {type: sns, topic_arn: arn:aws:sns:eu-central-1:123456789012:orders, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  eventbridge-1:
    type: eventbridge
    event_bus: arn:aws:events:eu-central-1:123456789012:event-bus/orders
    source: shop.{{ .Headers.tenant }}
    detail_type: "{{ .Event.Type }}"
    resources: ["order/{{ .Event.AggregateID }}"]
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://events.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  eventbridge-2: {type: eventbridge, region: eu-west-1, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  kinesis-1:
    type: kinesis
    stream: arn:aws:kinesis:eu-central-1:123456789012:stream/orders
    partition_key: "{{ .Event.AggregateID }}"
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://kinesis.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  kinesis-2: {type: kinesis, stream: orders, region: eu-west-1, body: '{{ .Payload.order }}', content_type: text/csv}
  pubsub-1:
    type: pubsub
    project: shop-123456
    topic: orders
    ordering_key: "{{ .Payload.customer }}"
    format: cloudevents_binary
    cloudevents_source: /shop
    endpoint: https://europe-west3-pubsub.googleapis.com
    credentials_file: google.json
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  pubsub-2: {type: pubsub, topic: projects/shop/topics/orders, endpoint: "http://localhost:8085", body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  postgres-1:
    type: postgres
    url: "${env:INBOX_URL}"
    source: shop
    schema: orders
    table: inbox
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  file-1:
    type: file
    path: archive/{{ .Event.Type }}.jsonl
    concurrency: 2
    batch: 20
    timeout: 29s
  nats-1:
    type: nats
    servers: [tls://n1.example.com:4222, nats://127.0.0.1]
    subject: "orders.{{ .Event.Type }}"
    mode: jetstream
    stream: ORDERS
    format: cloudevents_binary
    cloudevents_source: /shop
    username: shop
    password: ${env:SECRET}
    allow_unencrypted: true
    tls: {server_name: nats}
    client_name: shop
    connect_timeout: 2s
    ack_timeout: 3s
    concurrency: 2
    batch: 13
    timeout: 20s
  nats-2: {type: nats, servers: tls://n.example.com, subject: s, mode: core, token: "${env:SECRET}", body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  nats-3: {type: nats, servers: tls://n.example.com, subject: s, credentials_file: creds.txt}
  nats-4: {type: nats, servers: tls://n.example.com, subject: s, nkey_seed: "${env:NKEY_SEED}"}
  redis-1:
    type: redis
    addresses: [r1.example.com:6379, r2.example.com]
    sentinel_master: main
    sentinel_username: watch
    sentinel_password: ${env:SECRET}
    username: shop
    password: ${env:SECRET}
    allow_unencrypted: true
    database: 2
    tls: {}
    stream: "{{ .Event.AggregateType }}"
    format: cloudevents_binary
    cloudevents_source: /shop
    payload_field: body
    max_len: 1000
    deduplicate: 2000
    wait_replicas: 1
    wait_timeout: 2s
    max_message_bytes: 4096
    connect_timeout: 1s
    write_timeout: 2s
    read_timeout: 3s
    concurrency: 2
    batch: 14
    timeout: 40s
  redis-2: {type: redis, url: "rediss://shop:${env:SECRET}@r.example.com/1", channel: orders, require_subscribers: true}
  redis-3: {type: redis, addresses: r.example.com, cluster: true, stream: orders, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
`

// everyOther are the settings that are neither of a destination nor of the relay.
const everyOther = `version: 1
database: {url: "postgres://app:${env:SECRET}@db.example.com/app?application_name=shop", listen_url: "host=db.example.com password=${env:SECRET} dbname=app", schema: shop}
log: {level: debug, format: json}
admin: {listen: "127.0.0.1:9470", tls: {cert_file: tls/tls.crt, key_file: tls/tls.key}, token: "${env:ADMIN_TOKEN}", pprof: true, console: true, read_only: true, payloads: hidden, read_only_token: "${env:VIEWER_TOKEN}", actor_header: X-Forwarded-User, trusted_proxies: [127.0.0.1, "10.1.0.0/16"]}
alerts: {to: [log], on: [destination, waiting], every: 6m, oldest_waiting: 0}
routes: [{match: order.*, to: [log, webhook-1], when: 'payload.total > 100.0'}, {match: "*", to: webhook-2}]
`
