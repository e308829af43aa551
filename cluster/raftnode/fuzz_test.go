package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// pipes is a stream layer whose connections a test makes.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error { close(p); return nil }

func (pipes) Addr() net.Addr { return nameAddr("a") }

func (pipes) Dial(_, _ string, _ time.Duration) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}

// FuzzStreams sends any bytes over a connection of the raft port, to raft's own decoder and to that of asks. The
// connection ends, and the next ask is answered.
func FuzzStreams(f *testing.F) {
	in := make(pipes)
	log := hclog.NewNullLogger()
	s := newStreams(Config{ID: "a", Streams: in}, log, func(context.Context, ask) reply {
		return reply{Status: Status{ID: "a"}}
	})
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: connections, Timeout: callTimeout, Logger: log, MsgpackUseNewTimeFormat: true,
	})
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case rpc := <-network.Consumer():
				if rpc.Reader != nil {
					_, _ = io.Copy(io.Discard, rpc.Reader)
				}
				rpc.Respond(nil, errors.New("no"))
			case <-over:
				return
			}
		}
	}()
	f.Cleanup(func() {
		if err := network.Close(); err != nil {
			f.Error(err)
		}
		close(over)
		<-ended
	})
	line, err := json.Marshal(ask{Promise: &promise{}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(append([]byte{question}, line...), '\n'))
	f.Add([]byte{question, '{', '\n'})
	for kind := range byte(7) {
		for _, msg := range []string{
			"\x81\xa4Term\x01",
			"\xdf\xff\xff\xff\xff",                                 // a map of 4 G entries
			"\x81\xa7Entries\xdd\xff\xff\xff\xff\x80",              // as many log entries
			"\x81\xa6Leader\xc6\x7f\xff\xff\xff\x01\x02",           // 2 GB of bytes
			"\x81\xa4Size\xd3\x7f\xff\xff\xff\xff\xff\xff\xff\x0f", // a huge snapshot
		} {
			f.Add(append([]byte{kind}, msg...))
		}
	}
	exchange := func(t *testing.T, bytes []byte) []byte {
		t.Helper()
		own, other := net.Pipe()
		in <- other
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = own.Write(bytes)
		}()
		answer := make(chan []byte)
		go func() {
			got := make([]byte, 64<<10)
			n, _ := io.ReadAtLeast(own, got, 1)
			answer <- got[:n]
		}()
		<-sent
		if len(bytes) == 0 || bytes[0] != question { // raft waits for more
			_ = own.Close()
		}
		got := <-answer
		_ = own.Close()
		return got
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if len(bytes) > 0 && bytes[0] == question {
			bytes = append(bytes, '\n') // or it waits for the rest of the line
		}
		exchange(t, bytes)
		var r reply
		if err := json.Unmarshal(exchange(t, append(append([]byte{question}, line...), '\n')), &r); err != nil ||
			r.Status.ID != "a" {
			t.Fatalf("an ask is answered with %v, %v", r, err)
		}
	})
}
