/* Dates, datetimes in UTC or a zone of the tz database, decimals and UUIDs: as emitted, as bytes, and back; the twins are `checked`,
   `encoded` and `decoded` of common/model/values/value_types.py. What is unusual is left to them. A look-up of a zone runs code of
   zoneinfo in Python, and so a collection, a signal or another thread: never within a PyDict_Next of a user's mapping. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <datetime.h>
#include <string.h>

enum { DATE = 2, DATETIME, DECIMAL, UNIQUE_ID }; /* codes of value_types.py */
enum { LONGEST_TEXT = 200, LONGEST_ZONE = 100, DATE_SIZE = 10, SHORT_SIZE = 19, LONG_SIZE = 26, ID_SIZE = 16 };

static PyObject *decimal, *unique_id, *zone_info, *unknown_safety; /* NULL: values of the class are left to the twin */
static PyObject *name_of_key, *name_of_int, *name_of_safety, *name_of_signals;

/* Whether a class is written in C: then its methods are those that this was written for. */
static int
is_compiled(PyObject *class)
{
    unsigned long flags = PyType_Check(class) ? ((PyTypeObject *)class)->tp_flags : Py_TPFLAGS_HEAPTYPE;
    return !(flags & Py_TPFLAGS_HEAPTYPE) || flags & Py_TPFLAGS_IMMUTABLETYPE;
}

static PyObject *
without_error(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return NULL;
}

/* The zone of this name, which zoneinfo keeps; NULL without an error where there is none. */
static PyObject *
zone_of(PyObject *name)
{
    PyObject *found = zone_info == NULL ? NULL : PyObject_CallOneArg(zone_info, name);
    return found != NULL ? found : without_error();
}

/* The name of a datetime's zone, None for UTC; NULL without an error: for the twin. */
static PyObject *
name_of_zone(PyObject *value)
{
    PyObject *zone = PyDateTime_DATE_GET_TZINFO(value), *name;
    if (zone == PyDateTime_TimeZone_UTC)
        return Py_NewRef(Py_None);
    if (zone_info == NULL || (PyObject *)Py_TYPE(zone) != zone_info)
        return NULL;
    name = PyObject_GetAttr(zone, name_of_key);
    if (name == NULL)
        return without_error();
    if (!PyUnicode_CheckExact(name) || !PyUnicode_IS_COMPACT_ASCII(name) || PyUnicode_GET_LENGTH(name) > LONGEST_ZONE ||
        PyUnicode_CompareWithASCIIString(name, "UTC") == 0)
        Py_CLEAR(name);
    return name;
}

/* Whether a value is a datetime of fold 1 that `checked` gives another zone. */
static int
has_own_form(PyObject *value)
{
    return Py_TYPE(value) == PyDateTimeAPI->DateTimeType && PyDateTime_DATE_GET_FOLD(value) && zone_info != NULL &&
           (PyObject *)Py_TYPE(PyDateTime_DATE_GET_TZINFO(value)) == zone_info;
}

/* Whether `own_key` gives a key of a state another form. Also called by _core.c. */
int
is_other_key(PyObject *key)
{
    for (Py_ssize_t n = 0; PyTuple_CheckExact(key) && n < PyTuple_GET_SIZE(key); n++)
        if (has_own_form(PyTuple_GET_ITEM(key, n)))
            return 1;
    return has_own_form(key);
}

/* Whether a value is read elsewhere as it is; -1 with an error. Also called by _values.c. */
int
is_exact_value(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    int found = 0;
    if (type == PyDateTimeAPI->DateType || (PyObject *)type == unique_id)
        return 1;
    if (type == PyDateTimeAPI->DateTimeType) {
        PyObject *name = has_own_form(value) ? NULL : name_of_zone(value);
        PyObject *zone = name == NULL || name == Py_None ? NULL : zone_of(name);
        found = name == Py_None || (zone != NULL && zone == PyDateTime_DATE_GET_TZINFO(value));
        Py_XDECREF(name);
        Py_XDECREF(zone);
    } else if ((PyObject *)type == decimal) {
        PyObject *signals = PyObject_CallMethodNoArgs(value, name_of_signals);
        found = signals == Py_False;
        Py_XDECREF(signals);
    }
    return PyErr_Occurred() ? -1 : found;
}

static char *
put_digits(char *to, int number, int count)
{
    for (int at = count - 1; at >= 0; at--, number /= 10)
        to[at] = (char)('0' + number % 10);
    return to + count;
}

static char *
put_date(char *to, PyObject *value)
{
    to = put_digits(to, PyDateTime_GET_YEAR(value), 4);
    *to++ = '-';
    to = put_digits(to, PyDateTime_GET_MONTH(value), 2);
    *to++ = '-';
    return put_digits(to, PyDateTime_GET_DAY(value), 2);
}

/* The head of a text of msgpack. */
static char *
put_text_head(char *to, Py_ssize_t size)
{
    if (size > 31)
        *to++ = (char)0xD9;
    *to++ = (char)(size > 31 ? size : 0xA0 + size);
    return to;
}

static char *
put_text(char *to, PyObject *text)
{
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    to = put_text_head(to, size);
    memcpy(to, PyUnicode_1BYTE_DATA(text), (size_t)size);
    return to + size;
}

static char *
put_datetime(char *to, PyObject *value, PyObject *name)
{
    int micros = PyDateTime_DATE_GET_MICROSECOND(value);
    *to++ = (char)0x93;
    to = put_date(put_text_head(to, micros ? LONG_SIZE : SHORT_SIZE), value);
    *to++ = 'T';
    to = put_digits(to, PyDateTime_DATE_GET_HOUR(value), 2);
    *to++ = ':';
    to = put_digits(to, PyDateTime_DATE_GET_MINUTE(value), 2);
    *to++ = ':';
    to = put_digits(to, PyDateTime_DATE_GET_SECOND(value), 2);
    if (micros) {
        *to++ = '.';
        to = put_digits(to, micros, 6);
    }
    if (name == Py_None)
        *to++ = 0;
    else
        to = put_text(to, name);
    *to++ = (char)PyDateTime_DATE_GET_FOLD(value);
    return to;
}

/* What is packed of a value, at most MOST_CONTENT bytes, and its code; the end of the bytes, NULL without an error: for the twin. */
static char *
put_content(char *to, PyObject *value, int *code)
{
    PyTypeObject *type = Py_TYPE(value);
    PyObject *part;
    char *end = NULL;
    if (type == PyDateTimeAPI->DateType) {
        *code = DATE;
        return put_date(put_text_head(to, DATE_SIZE), value);
    }
    if (type == PyDateTimeAPI->DateTimeType) {
        *code = DATETIME;
        part = name_of_zone(value);
        if (part != NULL)
            end = put_datetime(to, value, part);
    } else if ((PyObject *)type == decimal) {
        *code = DECIMAL;
        part = PyObject_Str(value);
        if (part != NULL && PyUnicode_IS_COMPACT_ASCII(part) && PyUnicode_GET_LENGTH(part) <= LONGEST_TEXT)
            end = put_text(to, part);
    } else if ((PyObject *)type == unique_id) {
        *code = UNIQUE_ID;
        part = PyObject_GetAttr(value, name_of_int);
        if (part != NULL && PyLong_CheckExact(part)) {
            to[0] = (char)0xC4;
            to[1] = ID_SIZE;
#if PY_VERSION_HEX < 0x030D0000
            int failed = _PyLong_AsByteArray((PyLongObject *)part, (unsigned char *)to + 2, ID_SIZE, 0, 0) < 0;
#else
            Py_ssize_t needed = PyLong_AsNativeBytes(
                part, to + 2, ID_SIZE, Py_ASNATIVEBYTES_BIG_ENDIAN | Py_ASNATIVEBYTES_UNSIGNED_BUFFER | Py_ASNATIVEBYTES_REJECT_NEGATIVE);
            int failed = needed < 0 || needed > ID_SIZE;
#endif
            end = failed ? NULL : to + 2 + ID_SIZE;
        }
    } else
        return NULL;
    Py_XDECREF(part);
    return end != NULL ? end : (char *)without_error();
}

/* The bytes of a value, at most MOST_EXTENSION of _msgpack.c; 0: for the twin, or with an error. Also called by _msgpack.c. */
Py_ssize_t
put_extension(unsigned char *to, PyObject *value)
{
    char content[256];
    int code;
    char *end = put_content(content, value, &code);
    if (end == NULL)
        return 0;
    Py_ssize_t size = end - content;
    unsigned char *at = to;
    if (size == 1 || size == 2 || size == 4 || size == 8 || size == 16)
        *at++ = (unsigned char)(size == 1 ? 0xD4 : size == 2 ? 0xD5 : size == 4 ? 0xD6 : size == 8 ? 0xD7 : 0xD8);
    else {
        *at++ = 0xC7;
        *at++ = (unsigned char)size;
    }
    *at++ = (unsigned char)code;
    memcpy(at, content, (size_t)size);
    return at + size - to;
}

/* A number of so many digits; -1 where there are others. */
static int
take_digits(const unsigned char *from, int count)
{
    int number = 0;
    for (int at = 0; at < count; at++) {
        if (from[at] < '0' || from[at] > '9')
            return -1;
        number = 10 * number + from[at] - '0';
    }
    return number;
}

/* Find the text of msgpack that begins here; its size, or -1. */
static Py_ssize_t
take_text(const unsigned char **from, const unsigned char *end)
{
    Py_ssize_t size = -1;
    if (*from < end && **from >= 0xA0 && **from < 0xC0)
        size = *(*from)++ & 31;
    else if (end - *from >= 2 && **from == 0xD9) {
        size = (*from)[1];
        *from += 2;
    }
    return size <= end - *from ? size : -1;
}

static int
take_date(const unsigned char *text, int *year, int *month, int *day)
{
    *year = take_digits(text, 4);
    *month = take_digits(text + 5, 2);
    *day = take_digits(text + 8, 2);
    return text[4] == '-' && text[7] == '-' && *year >= 0 && *month >= 0 && *day >= 0;
}

static PyObject *
date_of(const unsigned char *from, const unsigned char *end)
{
    int year, month, day;
    if (take_text(&from, end) != DATE_SIZE || end - from != DATE_SIZE || !take_date(from, &year, &month, &day))
        return NULL;
    return PyDate_FromDate(year, month, day);
}

static PyObject *
datetime_of(const unsigned char *from, const unsigned char *end)
{
    int year, month, day, micros = 0;
    if (from == end || *from++ != 0x93)
        return NULL;
    Py_ssize_t size = take_text(&from, end);
    if ((size != SHORT_SIZE && size != LONG_SIZE) || !take_date(from, &year, &month, &day))
        return NULL;
    int hour = take_digits(from + 11, 2), minute = take_digits(from + 14, 2), second = take_digits(from + 17, 2);
    if (size == LONG_SIZE)
        micros = from[19] == '.' ? take_digits(from + 20, 6) : -1;
    if (from[10] != 'T' || from[13] != ':' || from[16] != ':' || hour < 0 || minute < 0 || second < 0 || micros < 0)
        return NULL;
    from += size;
    PyObject *zone = NULL;
    if (from < end && *from == 0) {
        zone = Py_NewRef(PyDateTime_TimeZone_UTC);
        from++;
    } else if ((size = take_text(&from, end)) > 0 && size <= LONGEST_ZONE) {
        PyObject *name = PyUnicode_DecodeASCII((const char *)from, size, NULL);
        zone = name == NULL ? NULL : zone_of(name);
        Py_XDECREF(name);
        from += size;
    }
    PyObject *found = NULL;
    /* fold 1 in a zone of the tz database: the twin's */
    if (zone != NULL && end - from == 1 && *from <= (zone == PyDateTime_TimeZone_UTC))
        found = PyDateTimeAPI->DateTime_FromDateAndTimeAndFold(year, month, day, hour, minute, second, micros, zone, *from,
                                                               PyDateTimeAPI->DateTimeType);
    Py_XDECREF(zone);
    return found;
}

static PyObject *
decimal_of(const unsigned char *from, const unsigned char *end)
{
    Py_ssize_t size = take_text(&from, end);
    if (decimal == NULL || size < 1 || size != end - from)
        return NULL;
    for (Py_ssize_t at = 0; at < size; at++)
        if ((from[at] < '0' || from[at] > '9') && memchr("+-.E", from[at], 4) == NULL)
            return NULL; /* what is no number */
    PyObject *text = PyUnicode_DecodeASCII((const char *)from, size, NULL);
    PyObject *found = text == NULL ? NULL : PyObject_CallOneArg(decimal, text);
    Py_XDECREF(text);
    return found;
}

static PyObject *
unique_id_of(const unsigned char *from, const unsigned char *end)
{
    if (unique_id == NULL || end - from != 2 + ID_SIZE || from[0] != 0xC4 || from[1] != ID_SIZE)
        return NULL;
#if PY_VERSION_HEX < 0x030D0000
    PyObject *number = _PyLong_FromByteArray(from + 2, ID_SIZE, 0, 0);
#else
    PyObject *number = PyLong_FromUnsignedNativeBytes(from + 2, ID_SIZE, Py_ASNATIVEBYTES_BIG_ENDIAN);
#endif
    PyObject *none = PyTuple_New(0), *found = NULL;
    if (number != NULL && none != NULL)
        found = PyBaseObject_Type.tp_new((PyTypeObject *)unique_id, none, NULL);
    /* as its __init__, which checks and converts first: the class itself refuses to be changed */
    if (found != NULL &&
        (PyObject_GenericSetAttr(found, name_of_int, number) < 0 || PyObject_GenericSetAttr(found, name_of_safety, unknown_safety) < 0))
        Py_CLEAR(found);
    Py_XDECREF(none);
    Py_XDECREF(number);
    return found;
}

/* The value of an extension; NULL without an error: for the twin. Also called by _msgpack.c. */
PyObject *
extension_of(int code, const unsigned char *data, Py_ssize_t size)
{
    static PyObject *(*const readers[])(const unsigned char *, const unsigned char *) = {date_of, datetime_of, decimal_of, unique_id_of};
    PyObject *found = code < DATE || code > UNIQUE_ID ? NULL : readers[code - DATE](data, data + size);
    return found != NULL ? found : without_error(); /* damaged: the twin raises it again */
}

/* Called by PyInit__core: 0, or -1 with an error. */
int
import_dates(void)
{
    PyDateTime_IMPORT;
    name_of_key = PyUnicode_InternFromString("key");
    name_of_int = PyUnicode_InternFromString("int");
    name_of_safety = PyUnicode_InternFromString("is_safe");
    name_of_signals = PyUnicode_InternFromString("is_snan");
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(set_value_types_doc,
             "set_value_types(Decimal, UUID, SafeUUID.unknown, ZoneInfo): the classes whose values are packed and read here.");

static PyObject *
set_value_types(PyObject *module, PyObject *args)
{
    PyObject *numbers, *ids, *safety, *zones;
    if (!PyArg_ParseTuple(args, "O!O!OO!", &PyType_Type, &numbers, &PyType_Type, &ids, &safety, &PyType_Type, &zones))
        return NULL;
    Py_XSETREF(decimal, is_compiled(numbers) ? Py_NewRef(numbers) : NULL);
    Py_XSETREF(unique_id, Py_NewRef(ids));
    Py_XSETREF(unknown_safety, Py_NewRef(safety));
    Py_XSETREF(zone_info, is_compiled(zones) ? Py_NewRef(zones) : NULL);
    Py_RETURN_NONE;
}

PyMethodDef extensions_functions[] = {
    {"set_value_types", set_value_types, METH_VARARGS, set_value_types_doc},
    {NULL, NULL, 0, NULL},
};
