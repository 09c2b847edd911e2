"""TCP echo load: CONNECTIONS connections to ADDRESS, each with 64 bytes on the way without pause, for SECONDS.

Prints `trips N, fewest M` (of all connections, of the one with the fewest); an answer that is not what was sent, or a
connection that ends, is an error."""
import select
import socket
import sys
import time

address, connections, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
poll = select.epoll()
trips, sent, sockets = {}, {}, {}
for n in range(connections):
    s = socket.create_connection((address, 7), timeout=60)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = s.fileno()
    sockets[fd], trips[fd], sent[fd] = s, 0, n.to_bytes(4, "little") * 16
    s.sendall(sent[fd])
    poll.register(fd, select.EPOLLIN)
end = time.monotonic() + seconds
got = dict.fromkeys(sockets, b"")
while time.monotonic() < end:
    for fd, _ in poll.poll(1):
        data = sockets[fd].recv(64)
        if not data:
            sys.exit(f"connection ended after {trips[fd]} trips")
        got[fd] += data
        if len(got[fd]) < 64:
            continue
        if got[fd] != sent[fd]:
            sys.exit(f"sent {sent[fd].hex()}, got {got[fd].hex()}")
        trips[fd] += 1
        got[fd] = b""
        sent[fd] = trips[fd].to_bytes(4, "little") + sent[fd][4:]
        sockets[fd].sendall(sent[fd])
print(f"trips {sum(trips.values())}, fewest {min(trips.values())}")
