package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"
)

// router asks for commands and files as the Go SDK of agent-sandbox does, whose module cannot be had everywhere.
type router struct {
	client                        *http.Client
	namespace, sandbox, url, auth string
}

func newRouter(namespace, sandbox, url, ca string) (*router, error) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", ca)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	return &router{&http.Client{Transport: transport}, namespace, sandbox, url, "Bearer " + os.Getenv("TOKEN")}, nil
}

func dataPlane(ctx context.Context, arguments []string) {
	if len(arguments) != 4 {
		fmt.Fprintln(os.Stderr, "usage: go-client data-plane NAMESPACE SANDBOX URL CA")
		os.Exit(2)
	}
	r, err := newRouter(arguments[0], arguments[1], arguments[2], arguments[3])
	if err != nil {
		fail("set-up", err)
	}
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"run", r.run},
		{"write", r.write},
		{"stream", r.stream},
		{"read", r.read},
		{"list", r.list},
		{"exists", r.exists},
		{"refusals", r.refusals},
	} {
		if err := check.run(ctx); err != nil {
			fail(check.name, err)
		}
		fmt.Println("ok", check.name)
	}
}

// send returns the body of an answer that has this code.
func (r *router) send(ctx context.Context, method, endpoint, contentType string, body io.Reader, code int) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, r.url+"/"+endpoint, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", r.auth)
	request.Header.Set("X-Sandbox-ID", r.sandbox)
	request.Header.Set("X-Sandbox-Namespace", r.namespace)
	request.Header.Set("X-Sandbox-Port", "8888")
	request.Header.Set("X-Sandbox-Timeout", "60")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != code {
		return nil, fmt.Errorf("%s %s: %s: %.200s", method, endpoint, response.Status, answer)
	}
	return answer, nil
}

func (r *router) get(ctx context.Context, action, path string, into any) error {
	answer, err := r.send(ctx, http.MethodGet, action+"/"+url.PathEscape(path), "", nil, http.StatusOK)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

type result struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
	TimedOut bool   `json:"timed_out"`
}

func (r *router) execute(ctx context.Context, command string, seconds float64) (result, error) {
	request := map[string]any{"command": command}
	if seconds > 0 {
		request["timeout_seconds"] = seconds
	}
	body, err := json.Marshal(request)
	if err != nil {
		return result{}, err
	}
	answer, err := r.send(ctx, http.MethodPost, "execute", "application/json", bytes.NewReader(body), http.StatusOK)
	if err != nil {
		return result{}, err
	}
	var ran result
	return ran, json.Unmarshal(answer, &ran)
}

func (r *router) run(ctx context.Context) error {
	ran, err := r.execute(ctx, "echo out; echo err >&2; exit 7", 0)
	if err != nil {
		return err
	}
	if want := (result{"out\n", "err\n", 7, false}); ran != want {
		return fmt.Errorf("%+v and not %+v", ran, want)
	}
	ran, err = r.execute(ctx, "sleep 60", 0.5)
	if err != nil {
		return err
	}
	if !ran.TimedOut || ran.ExitCode != 124 {
		return fmt.Errorf("a command that takes too long: %+v", ran)
	}
	return nil
}

// content is more than fits any buffer on the way.
func content() []byte { return bytes.Repeat([]byte{0, 1, 2, 0xff, '\r', '\n', '-', '-'}, 300_000) }

func (r *router) write(ctx context.Context) error {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "content.bin")
	if err != nil {
		return err
	}
	if _, err := part.Write(content()); err != nil {
		return err
	}
	if err := form.Close(); err != nil {
		return err
	}
	_, err = r.send(ctx, http.MethodPost, "upload", form.FormDataContentType(), &body, http.StatusOK)
	return err
}

// stream sends a file of a length that is not known before.
func (r *router) stream(ctx context.Context) error {
	reader, writer := io.Pipe()
	form := multipart.NewWriter(writer)
	go func() {
		part, err := form.CreateFormFile("file", "ünit \"1\".txt")
		if err == nil {
			_, err = io.Copy(part, strings.NewReader(strings.Repeat("line\n", 100_000)))
		}
		if err == nil {
			err = form.Close()
		}
		writer.CloseWithError(err)
	}()
	_, err := r.send(ctx, http.MethodPost, "upload", form.FormDataContentType(), reader, http.StatusOK)
	return err
}

func (r *router) read(ctx context.Context) error {
	answer, err := r.send(ctx, http.MethodGet, "download/content.bin", "", nil, http.StatusOK)
	if err != nil {
		return err
	}
	if !bytes.Equal(answer, content()) {
		return fmt.Errorf("%d bytes, and not those that were written", len(answer))
	}
	answer, err = r.send(ctx, http.MethodGet, "download/"+url.PathEscape("ünit \"1\".txt"), "", nil, http.StatusOK)
	if err != nil {
		return err
	}
	if len(answer) != 500_000 {
		return fmt.Errorf("%d bytes of a stream", len(answer))
	}
	return nil
}

func (r *router) list(ctx context.Context) error {
	if _, err := r.execute(ctx, "mkdir -p d/e; echo x > d/f", 0); err != nil {
		return err
	}
	var listed []struct {
		Name string `json:"name"`
		Size int64  `json:"size"`
		Type string `json:"type"`
	}
	if err := r.get(ctx, "list", "d", &listed); err != nil {
		return err
	}
	found := map[string]string{}
	for _, entry := range listed {
		found[entry.Name] = fmt.Sprint(entry.Type, " ", entry.Size)
	}
	if want := map[string]string{"e": "directory 0", "f": "file 2"}; !reflect.DeepEqual(found, want) {
		return fmt.Errorf("%v and not %v", found, want)
	}
	return nil
}

func (r *router) exists(ctx context.Context) error {
	for path, want := range map[string]bool{"d/f": true, "d/g": false} {
		var found struct {
			Exists bool `json:"exists"`
		}
		if err := r.get(ctx, "exists", path, &found); err != nil {
			return err
		}
		if found.Exists != want {
			return fmt.Errorf("%s: %v", path, found.Exists)
		}
	}
	return nil
}

func (r *router) refusals(ctx context.Context) error {
	for endpoint, code := range map[string]int{
		"download/missing":    http.StatusNotFound,
		"download/%2E%2E%2Fa": http.StatusBadRequest,
		"list/content.bin":    http.StatusBadRequest,
	} {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		_, err := r.send(ctx, http.MethodGet, endpoint, "", nil, code)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
