// Command takeover is a proxy that takes over from itself as Envoy does (hot restart): the process of restart epoch 0
// opens a socket, each further one gets it from the one before, serves on it, and then tells that one to serve no new
// connections and to end. It answers each connection with its epoch and the file that it has read at its start.
//
//	takeover -c FILE -base-id N -restart-epoch N -address FILE
//
// With -fail it ends at once if it is not of epoch 0.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	config := flag.String("c", "", "the file to read")
	base := flag.Int("base-id", 0, "distinguishes it from other proxies of the machine")
	epoch := flag.Int("restart-epoch", 0, "how many processes were before it")
	address := flag.String("address", "", "the file for the address")
	fail := flag.String("fail", "", "end at once while this file exists, in later epochs")
	flag.Parse()
	log.SetPrefix(fmt.Sprintf("takeover, epoch %d: ", *epoch))
	if _, err := os.Stat(*fail); err == nil && *epoch > 0 {
		os.Exit(7)
	}
	text, err := os.ReadFile(*config)
	if err == nil {
		err = run(string(text), *base, *epoch, *address)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(text string, base, epoch int, address string) error {
	var listener net.Listener
	var before *net.UnixConn
	var err error
	if epoch == 0 {
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			err = os.WriteFile(address, []byte(listener.Addr().String()), 0o644)
		}
	} else {
		listener, before, err = inherit(base, epoch-1)
	}
	if err != nil {
		return err
	}
	next, err := net.ListenUnix("unix", handover(base, epoch))
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	serving.Go(func() { serve(listener, fmt.Sprintf("%d %s", epoch, text)) })
	if before != nil {
		if _, err := before.Write([]byte{0}); err != nil { // which tells it to end
			return err
		}
	}
	for succeeded := false; !succeeded; {
		successor, err := next.AcceptUnix()
		if err != nil {
			return err
		}
		if err := handOver(successor, listener.(*net.TCPListener)); err != nil {
			return err
		}
		n, _ := successor.Read(make([]byte, 1)) // 0: it has ended before it served
		succeeded = n > 0
	}
	// The socket is the successor's too: connections that wait in it are not lost.
	if err := listener.Close(); err != nil {
		return err
	}
	serving.Wait()
	return nil
}

// handover is where the process of an epoch waits for the next one.
func handover(base, epoch int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@pannier-takeover-%d-%d", base, epoch)}
}

// inherit gets the socket from the process of an epoch.
func inherit(base, epoch int) (net.Listener, *net.UnixConn, error) {
	conn, err := net.DialUnix("unix", nil, handover(base, epoch))
	if err != nil {
		return nil, nil, err
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, nil, fmt.Errorf("%d messages with sockets: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "listener")
	defer file.Close()
	listener, err := net.FileListener(file)
	return listener, conn, err
}

func handOver(to *net.UnixConn, listener *net.TCPListener) error {
	file, err := listener.File()
	if err != nil {
		return err
	}
	defer file.Close()
	_, _, err = to.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil)
	return err
}

// serve answers connections until the listener is closed, and returns when all are answered.
func serve(listener net.Listener, answer string) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		open.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.WriteString(conn, answer) // the caller may have gone
		})
	}
}
