package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/system/signing"
)

// NewHTTP returns a client that goes to https addresses only, also when it is redirected, and bounds how long a server
// may stay silent.
func NewHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   30 * time.Second,
			ResponseHeaderTimeout: time.Minute,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // the length of what comes is checked
		},
		CheckRedirect: OnlyHTTPS,
	}
}

// OnlyHTTPS refuses redirects to other addresses than https.
func OnlyHTTPS(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Scheme != "https":
		return fmt.Errorf("it redirects to %s, which is not https", Redacted(req.URL.String()))
	case len(via) >= 10:
		return errors.New("it redirects more than 10 times")
	}
	return nil
}

// openHTTPS opens an address: of a folder with a SHA256SUMS if it ends in a slash, of an archive, or of one file.
func (i *installation) openHTTPS(ctx context.Context) (*bundle, error) {
	u, err := url.Parse(i.Source)
	if err != nil || u.Host == "" {
		return nil, errors.New("the address cannot be read")
	}
	if u.User != nil {
		return nil, errors.New("the address has a user or a password, which would be seen by others: leave it out")
	}
	get := func(ctx context.Context, name string) (io.ReadCloser, error) {
		at := *u
		if name != path.Base(u.Path) || strings.HasSuffix(u.Path, "/") {
			at = *u.ResolveReference(&url.URL{Path: "./" + name})
		}
		return i.get(ctx, at.String())
	}
	b := &bundle{names: []string{path.Base(u.Path)}, open: get}
	switch {
	case strings.HasSuffix(u.Path, "/"):
		text, err := b.read(ctx, sumsFile, signing.MaxSums)
		if err != nil {
			return nil, err
		}
		if text == nil {
			return nil, fmt.Errorf("there is no %s: give the address of a file, or of a folder that has one", sumsFile)
		}
		sums, err := signing.ParseSums(text)
		b.names = nil
		for _, s := range sums {
			b.names = append(b.names, s.File)
		}
		return b, err
	case isArchive(u.Path):
		body, err := i.get(ctx, u.String())
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return i.openArchive(body)
	default:
		return b, nil
	}
}

// get fetches an address. The error is fs.ErrNotExist if there is nothing.
func (i *installation) get(ctx context.Context, address string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.HTTP.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // it has the address with its secrets
			err = failed.Err
		}
		return nil, fmt.Errorf("%s: %w", Redacted(address), err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		err := fmt.Errorf("%s answers %s", Redacted(address), resp.Status)
		switch resp.StatusCode {
		case http.StatusNotFound, http.StatusForbidden, http.StatusGone: // some stores forbid what does not exist
			err = fmt.Errorf("%w: %w", err, fs.ErrNotExist)
		}
		return nil, err
	}
	return resp.Body, nil
}
