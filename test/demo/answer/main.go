// Command answer is the service in the mesh demo. It answers each HTTP request with one line, until a signal
// ends it.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	listen := flag.String("listen", "", "the `HOST:PORT` to listen on")
	text := flag.String("text", "", "the `line` to answer with")
	flag.Parse()
	server := &http.Server{
		Addr: *listen, ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, *text) }),
	}
	fmt.Fprintln(os.Stderr, "answer:", server.ListenAndServe())
	os.Exit(1)
}
