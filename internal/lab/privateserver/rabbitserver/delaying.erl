%% An exchange that treats messages as the plugin rabbitmq_delayed_message_exchange does, for a broker without it: it keeps
%% a message with a positive header x-delay, so that the message has no queue when it is published, and routes it later.
-module(delaying).
-include_lib("rabbit_common/include/rabbit.hrl").
-include_lib("rabbit_common/include/rabbit_framing.hrl").
-behaviour(rabbit_exchange_type).

-export([register/0]).
-export([description/0, serialise_events/0, route/2, validate/1, validate_binding/2, create/2, delete/3, policy_changed/2,
         add_binding/3, remove_bindings/3, assert_args_equivalence/2, info/1, info/2]).

register() ->
    rabbit_registry:register(exchange, <<"x-delayed-message">>, ?MODULE).

description() -> [{description, <<"delays messages">>}].
serialise_events() -> false.
info(_) -> [].
info(_, _) -> [].

route(#exchange{name = Name}, #delivery{message = Message} = Delivery) ->
    Keys = Message#basic_message.routing_keys,
    case delay(Message#basic_message.content) of
        0 ->
            rabbit_router:match_routing_key(Name, Keys);
        Milliseconds ->
            spawn(fun() -> timer:sleep(Milliseconds), deliver(Name, Keys, Delivery) end),
            []
    end.

delay(Content) ->
    #content{properties = #'P_basic'{headers = Headers}} = rabbit_binary_parser:ensure_content_decoded(Content),
    case rabbit_misc:table_lookup(Headers, <<"x-delay">>) of
        {longstr, Text} -> max(0, binary_to_integer(Text));
        _ -> 0
    end.

deliver(Name, Keys, Delivery) ->
    Queues = rabbit_amqqueue:lookup(rabbit_router:match_routing_key(Name, Keys)),
    rabbit_amqqueue:deliver(Queues, Delivery#delivery{mandatory = false, confirm = false, sender = self()}).

validate(#exchange{arguments = Arguments}) ->
    case rabbit_misc:table_lookup(Arguments, <<"x-delayed-type">>) of
        {_, <<"direct">>} -> ok;
        _ -> rabbit_misc:protocol_error(precondition_failed, "Invalid argument, 'x-delayed-type' must be an existing exchange type", [])
    end.

validate_binding(_, _) -> ok.
create(_, _) -> ok.
delete(_, _, _) -> ok.
policy_changed(_, _) -> ok.
add_binding(_, _, _) -> ok.
remove_bindings(_, _, _) -> ok.
assert_args_equivalence(Exchange, Arguments) -> rabbit_exchange:assert_args_equivalence(Exchange, Arguments).
