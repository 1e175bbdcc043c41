package originals;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Just enough JSON to read problems and write answers; whole numbers become Long. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        Json json = new Json(text);
        return json.value();
    }

    private char skip() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    private Object value() {
        char first = skip();
        if (first == '{') {
            return object();
        }
        if (first == '[') {
            return list();
        }
        if (first == '"') {
            return string();
        }
        int start = at;
        while (at < text.length() && "+-.eE".indexOf(text.charAt(at)) + 1 + (Character.isLetterOrDigit(text.charAt(at)) ? 1 : 0) > 0) {
            at++;
        }
        String word = text.substring(start, at);
        switch (word) {
            case "true":
                return Boolean.TRUE;
            case "false":
                return Boolean.FALSE;
            case "null":
                return null;
            default:
                return word.matches("-?\\d+") ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        while (skip() != '}') {
            if (text.charAt(at) == ',') {
                at++;
                skip();
            }
            String name = string();
            skip();
            at++;
            found.put(name, value());
        }
        at++;
        return found;
    }

    private List<Object> list() {
        List<Object> found = new ArrayList<>();
        at++;
        while (skip() != ']') {
            if (text.charAt(at) == ',') {
                at++;
            }
            found.add(value());
        }
        at++;
        return found;
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        at++;
        while (text.charAt(at) != '"') {
            char next = text.charAt(at++);
            if (next == '\\') {
                next = text.charAt(at++);
                if (next == 'u') {
                    next = (char) Integer.parseInt(text.substring(at, at + 4), 16);
                    at += 4;
                } else if ("nrt".indexOf(next) >= 0) {
                    next = "\n\r\t".charAt("nrt".indexOf(next));
                }
            }
            found.append(next);
        }
        at++;
        return found.toString();
    }

    static String show(Object value) {
        if (value instanceof Map) {
            List<String> parts = new ArrayList<>();
            ((Map<?, ?>) value).forEach((name, each) -> parts.add(show(String.valueOf(name)) + ": " + show(each)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof Iterable) {
            List<String> parts = new ArrayList<>();
            ((Iterable<?>) value).forEach(each -> parts.add(show(each)));
            return "[" + String.join(", ", parts) + "]";
        }
        if (value instanceof String) {
            StringBuilder shown = new StringBuilder("\"");
            for (char each : ((String) value).toCharArray()) {
                if (each == '"' || each == '\\') {
                    shown.append('\\').append(each);
                } else if (each < ' ' || each > '~') {
                    shown.append(String.format("\\u%04x", (int) each));
                } else {
                    shown.append(each);
                }
            }
            return shown.append('"').toString();
        }
        return String.valueOf(value);
    }

    private Json() {
        this("");
    }
}
