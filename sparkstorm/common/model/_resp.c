/* Packing of requests to Redis (RESP arrays of bulk strings); the twin is pack_plain in data_plane/transport/connection.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Write a number in decimal digits at the end of a buffer of 20 bytes; return its first byte. */
static const char *
digits_of(uint64_t number, char *buffer)
{
    char *at = buffer + 20;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return at;
}

/* Where the packed words go; without `data` they are only counted. */
typedef struct {
    char *data;
    Py_ssize_t size;
} Sink;

static inline void
put(Sink *sink, const char *data, Py_ssize_t size)
{
    if (sink->data != NULL)
        memcpy(sink->data + sink->size, data, (size_t)size);
    sink->size += size;
}

static inline void
put_head(Sink *sink, char kind, Py_ssize_t number)
{
    char buffer[20];
    const char *digits = digits_of((uint64_t)number, buffer);
    put(sink, &kind, 1);
    put(sink, digits, buffer + 20 - digits);
    put(sink, "\r\n", 2);
}

static inline void
put_text(Sink *sink, const char *data, Py_ssize_t size)
{
    put_head(sink, '$', size);
    put(sink, data, size);
    put(sink, "\r\n", 2);
}

static inline void
put_number(Sink *sink, long long number)
{
    char buffer[21];
    uint64_t magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    char *first = (char *)digits_of(magnitude, buffer + 1);
    if (number < 0)
        *--first = '-';
    put_text(sink, first, buffer + 21 - first);
}

/* 1: put; 0: for the twin (a large word, another type); -1: error. */
static int
put_word(Sink *sink, PyObject *word, Py_ssize_t most)
{
    if (PyBytes_CheckExact(word)) {
        if (PyBytes_GET_SIZE(word) >= most)
            return 0;
        put_text(sink, PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word));
        return 1;
    }
    if (PyUnicode_CheckExact(word)) {
        Py_ssize_t size;
        const char *text = PyUnicode_AsUTF8AndSize(word, &size);
        if (text == NULL)
            return -1;
        if (size >= most)
            return 0;
        put_text(sink, text, size);
        return 1;
    }
    if (PyLong_CheckExact(word)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(word, &overflow);
        if (overflow)
            return 0;
        put_number(sink, number);
        return 1;
    }
    return 0;
}

/* The same results as put_word, for all words and commands. */
static int
put_all(Sink *sink, PyObject *head, PyObject *commands, Py_ssize_t count, Py_ssize_t most)
{
    int done = 1;
    put_head(sink, '*', count);
    for (Py_ssize_t at = 0; done > 0 && at < PyList_GET_SIZE(head); at++)
        done = put_word(sink, PyList_GET_ITEM(head, at), most);
    for (Py_ssize_t n = 0; done > 0 && n < PyList_GET_SIZE(commands); n++) {
        PyObject *command = PyList_GET_ITEM(commands, n);
        put_number(sink, PyTuple_GET_SIZE(command));
        for (Py_ssize_t at = 0; done > 0 && at < PyTuple_GET_SIZE(command); at++)
            done = put_word(sink, PyTuple_GET_ITEM(command, at), most);
    }
    return done;
}

PyDoc_STRVAR(pack_words_doc,
             "pack_words(head, commands, most, /)\n--\n\nReturn a request of the words of a list and of a list of tuples, each behind its "
             "length; None when the twin has to: a word has `most` bytes or more, or is no bytes, str or 64-bit int.");

static PyObject *
pack_words(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "pack_words takes a list of words, a list of commands and a number");
        return NULL;
    }
    PyObject *head = args[0], *commands = args[1];
    Py_ssize_t most = PyLong_AsSsize_t(args[2]), count = PyList_GET_SIZE(head);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(commands); n++) {
        if (!PyTuple_CheckExact(PyList_GET_ITEM(commands, n)))
            Py_RETURN_NONE;
        count += 1 + PyTuple_GET_SIZE(PyList_GET_ITEM(commands, n));
    }
    Sink sink = {NULL, 0};
    int done = put_all(&sink, head, commands, count, most);
    if (done < 0)
        return NULL;
    if (done == 0)
        Py_RETURN_NONE;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, sink.size);
    if (packed == NULL)
        return NULL;
    sink = (Sink){PyBytes_AS_STRING(packed), 0};
    put_all(&sink, head, commands, count, most);
    return packed;
}

PyMethodDef resp_functions[] = {
    {"pack_words", (PyCFunction)(void (*)(void))pack_words, METH_FASTCALL, pack_words_doc},
    {NULL, NULL, 0, NULL},
};
