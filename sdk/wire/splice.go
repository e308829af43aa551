package wire

import (
	"errors"
	"io"
	"net"
)

// spliceChunk bounds the data of one message, in bytes.
const spliceChunk = 32 << 10

// Splice passes on data between a connection and a stream until either ends, and closes the connection. receive
// blocks until data has come; it must fail once the caller has ended the stream, which is up to the caller when Splice
// has returned. The error is the stream's; nil: it ended, or the connection did.
func Splice(conn net.Conn, send func([]byte) error, receive func() ([]byte, error)) error {
	received := make(chan error, 1)
	go func() { // ends with the stream
		defer conn.Close()
		for {
			data, err := receive()
			if err != nil {
				received <- err
				return
			}
			if _, err := conn.Write(data); err != nil {
				received <- nil
				return
			}
		}
	}()
	defer conn.Close()
	buf := make([]byte, spliceChunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return streamEnd(err)
			}
		}
		if err != nil {
			select {
			case err := <-received: // it has closed the connection
				return streamEnd(err)
			default:
				return nil
			}
		}
	}
}

func streamEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
