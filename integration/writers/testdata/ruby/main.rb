# Writes an order with the program of the page into each database of the command line. The
# order commits, and one more fails at its commit, because its e-mail address is none.
require "active_record"

class Order < ActiveRecord::Base
end

require_relative "with_active_record"

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

ARGV.each do |url|
  ActiveRecord::Base.establish_connection(url)
  place_order({ id: 1, email: "activerecord@example.com", total: 12.5 }, TRACE)
  begin
    place_order({ id: 101, email: "activerecord", total: 12.5 }, TRACE)
  rescue ActiveRecord::StatementInvalid => e
    raise unless e.message.include?("no address")
  else
    abort "commits an order that the database refuses"
  end
end
