# A server in Ruby that hands its connections over. Usage: services.rb PORT. It uses the protocol of services.py.
require "socket"

RECORD = 16
PROGRAMS = { "echo" => ["cat"], "digest" => ["sha256sum"], "shell" => ["sh", "-c", "cat | sha256sum"] }.freeze

listener = TCPServer.new("127.0.0.1", ARGV[0].to_i)
puts "ready"
$stdout.flush
loop do
  connection = listener.accept
  # Not read(): that takes more than it returns, and what it keeps the program would not see.
  exactly = lambda do
    got = +""
    got << connection.sysread(RECORD - got.bytesize) while got.bytesize < RECORD
    got
  end
  program = nil
  until program
    said = exactly.call
    program = PROGRAMS[said.sub(/\.+\z/, "")]
    connection.syswrite(said) unless program
  end
  Process.wait(spawn(*program, in: connection, out: connection))
  abort "it failed" unless $?.success?
  connection.close
end
